"""What really ran: FLOPs counted by hand, dtypes by hooks, casts one by one."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from src.config.schema import Dtype, PrecisionConfig
from src.survey.coverage import OUTSIDE, Coverage, Kind, observe
from src.survey.trial import Trial, try_mode

CPU = torch.device("cpu")


class Residual(nn.Module):
    """Two branches on one input, where a tracker by tensors is easily confused, and a layer called by its function."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.side = nn.Conv2d(8, 8, 1)
        self.own = nn.Parameter(torch.randn(8, 8))
        self.head = nn.Linear(8, 10)

    def forward(self, images):
        images = self.stem(images)
        mixed = F.relu(self.block(images) + self.side(images) + images).mean((2, 3))
        return self.head(mixed @ self.own)


def run(model: nn.Module, shape: tuple[int, ...], **precision) -> tuple[Coverage, Trial]:
    trial = try_mode(model, PrecisionConfig(**precision), device=CPU)
    images, labels = torch.randn(shape), torch.randint(10, (shape[0],))
    return observe(trial.working, lambda: trial.forward_backward(images, labels)), trial


def flops(coverage: Coverage, module: str, *, backward: bool) -> int:
    return sum(count for kind, count in coverage.flops.items() if (kind.module, kind.backward) == (module, backward))


def test_a_linear_layer_costs_two_flops_a_weight_and_row():
    """Backward needs the weight's gradient and, behind another layer, the input's."""
    coverage, _ = run(nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 10)), (5, 12), name="fp32")
    assert coverage.flops == {
        Kind("0", "matmul", "float32", False): 2 * 5 * 12 * 7,
        Kind("2", "matmul", "float32", False): 2 * 5 * 7 * 10,
        Kind("2", "matmul", "float32", True): 2 * (2 * 5 * 7 * 10),
        Kind("0", "matmul", "float32", True): 2 * 5 * 12 * 7,
    }
    assert coverage.kernels == 5
    assert not coverage.casts


def test_a_convolution_costs_two_flops_a_weight_and_place():
    """A stride of two and padding: 6 x 6 places of 9 x 9 pixels become 5 x 5."""
    model = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(6 * 5 * 5, 10))
    coverage, _ = run(model, (3, 4, 9, 9), name="fp32")
    forward = 2 * 3 * (5 * 5) * 6 * 4 * (3 * 3)
    assert coverage.flops[Kind("0", "convolution", "float32", False)] == forward
    assert coverage.flops[Kind("0", "convolution", "float32", True)] == forward  # images need no gradient


def test_attention_on_a_cpu_is_counted_too():
    """Torch has no formula for the CPU's kernel: two matmuls of L x L x D a head forward, five backward."""
    batch, heads, length, width = 2, 2, 6, 8

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(heads * width, heads, batch_first=True)
            self.head = nn.Linear(heads * width, 10)

        def forward(self, tokens):
            return self.head(self.inner(tokens, tokens, tokens, need_weights=False)[0].mean(1))

    coverage, _ = run(Attention(), (batch, length, heads * width), name="amp")
    matmul = 2 * batch * heads * length * length * width
    assert coverage.flops[Kind("inner", "attention", "bfloat16", False)] == 2 * matmul
    assert coverage.flops[Kind("inner", "attention", "bfloat16", True)] == 5 * matmul


def test_work_belongs_to_the_module_that_asked_for_it():
    """Forward and backward of each layer, whatever branches there are; the total is that of torch's own counter."""
    model = Residual()
    coverage, _ = run(model, (2, 3, 6, 6), name="fp32")
    places = 2 * 6 * 6
    expected = {
        "stem": 2 * places * 8 * 27,
        "block.0": 2 * places * 8 * 72,
        "side": 2 * places * 8 * 8,
        "": 2 * 2 * 8 * 8,
        "head": 2 * 2 * 8 * 10,
    }
    for name, count in expected.items():
        assert flops(coverage, name, backward=False) == count, name
        assert flops(coverage, name, backward=True) == count * (1 if name == "stem" else 2), name
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(torch.randn(2, 3, 6, 6)), torch.tensor([0, 1])).backward()
    assert sum(coverage.flops.values()) == counter.get_total_flops()


@pytest.mark.parametrize("name", ["fp32", "tf32", "amp", "bf16", "o0", "o1", "o2", "o3"])
def test_the_dtype_is_the_one_that_layers_put_out(name):
    model = Residual()
    trial = try_mode(model, PrecisionConfig(name=name), device=CPU)
    seen = {}
    for layer, module in trial.working.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(
                lambda _, args, output, layer=layer: seen.update({layer: str(output.dtype).removeprefix("torch.")})
            )
    coverage = observe(trial.working, lambda: trial.forward_backward(torch.randn(2, 3, 6, 6), torch.tensor([0, 1])))
    found = {kind.module: kind.number_format for kind in coverage.flops if kind.module and not kind.backward}
    assert found == seen
    assert set(seen.values()) == {"float32" if name in ("fp32", "tf32", "o0") else "bfloat16"}


@pytest.mark.parametrize("name", ["amp", "o2", "o3"])
def test_a_layer_kept_in_float32_shows(name):
    """An override is followed in the backward pass as well."""
    coverage, _ = run(Residual(), (2, 3, 6, 6), name=name, overrides=["side=float32"])
    assert {kind.module for kind in coverage.flops if kind.number_format == "float32"} == {"side"}
    full = 2 * (2 * 6 * 6) * 8 * 8
    backward = sum(count for kind, count in coverage.flops.items() if kind.backward)
    assert coverage.share(("bfloat16",), backward=True) == pytest.approx(1 - 2 * full / backward)


def test_forced_float16_is_scaled_and_seen():
    coverage, trial = run(Residual(), (2, 3, 6, 6), name="amp", dtype=Dtype.float16)
    assert trial.precision.scaled
    assert coverage.formats() == ["float16"]


def test_casts_of_autocast():
    """Input, weight and bias forward; gradients of weight and bias backward, and of the input where it needs one; loss in float32."""
    coverage, _ = run(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 10)), (4, 8), name="amp")
    assert coverage.casts == {"0": 3 + 2, "1": 2 + 2, OUTSIDE: 2}


def test_casts_at_the_door():
    """o3: the images on their way in, the logits on their way out and back."""
    coverage, _ = run(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 10)), (4, 8), name="o3")
    assert coverage.casts == {"": 3}


def test_the_network_is_left_without_hooks():
    model = nn.Sequential(nn.Linear(8, 10))
    run(model, (4, 8), name="fp32")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
