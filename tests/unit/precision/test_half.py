"""O2 and O3 on the CPU with real half weights, against loops written by hand."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from src.config.schema import AdamWConfig, ConstantConfig, Dtype, PrecisionConfig, ScalerConfig, SGDConfig
from src.optim import Schedule, build_optimizer
from src.precision import build_precision

CPU = torch.device("cpu")
HALVES = [Dtype.float16, Dtype.bfloat16]
TORCH = {Dtype.float16: torch.float16, Dtype.bfloat16: torch.bfloat16}


def build(name, dtype=Dtype.float16, *, keep="auto", overrides=(), **scaler):
    config = PrecisionConfig(name=name, dtype=dtype, keep_batchnorm_fp32=keep, overrides=list(overrides), scaler=ScalerConfig(**scaler))
    return build_precision(config, device=CPU)


def ready(name, model, dtype=Dtype.float16, *, optim=None, **settings):
    """Precision, the module that computes, and the optimizer."""
    precision = build(name, dtype, **settings)
    working = precision.prepare(model)
    config = optim or SGDConfig(lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0)
    optimizer = build_optimizer(config, model)
    schedule = Schedule(ConstantConfig(), optimizer, optim=config, total_updates=10, updates_per_epoch=5)
    return precision, working, optimizer, schedule


def step(precision, working, optimizer, x, target=0.0, *, clip_norm=None, factor=1.0):
    with precision.autocast():
        loss = (working(x) - target).square().mean() * factor
    precision.backward(loss)
    norm = precision.step(optimizer, clip_norm=clip_norm)
    optimizer.zero_grad(set_to_none=True)
    return norm


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LayerNorm(8 * 36), nn.Linear(8 * 36, 4)
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_o2_equals_a_loop_written_by_hand(dtype):
    """200 updates: half weights are the rounded masters, gradients are half, the update is float32."""
    torch.manual_seed(0)
    half, scale, lr = TORCH[dtype], 128.0 if dtype is Dtype.float16 else 1.0, 0.05
    model = nn.Linear(16, 8, bias=False)
    master = model.weight.detach().clone()
    optim = SGDConfig(lr=lr, momentum=0.0, nesterov=False, weight_decay=0.0)
    precision, working, optimizer, _ = ready("o2", model, dtype, optim=optim, init_scale=scale, growth_interval=10_000)
    for number in range(200):
        x, target = torch.randn(4, 16), torch.randn(4, 8)
        step(precision, working, optimizer, x, target)
        output = (x.to(half) @ master.to(half).T).float()
        error = ((output - target) * 2 / output.numel() * scale).to(half)
        master -= lr * (error.T @ x.to(half)).float() / scale
        assert working.weight.dtype == half
        assert torch.equal(working.weight, model.weight.to(half)), number
    torch.testing.assert_close(model.weight.detach(), master, rtol=0, atol=torch.finfo(half).eps / 50)


def test_updates_too_small_for_half_move_the_masters_only():
    """1 - 1e-4 rounds to 1 in float16: O3 stays for ever, O2 gets there."""
    ends = {}
    for name in ("o2", "o3"):
        model = nn.Linear(4, 1, bias=False)
        nn.init.ones_(model.weight)
        optim = SGDConfig(lr=1e-4, momentum=0.0, nesterov=False, weight_decay=0.0)
        precision, working, optimizer, _ = ready(name, model, optim=optim, init_scale=1.0)
        for _ in range(20):
            with precision.autocast():
                loss = working(torch.ones(1, 4)).mean()
            precision.backward(loss)
            precision.step(optimizer, clip_norm=None)
            optimizer.zero_grad(set_to_none=True)
        ends[name] = model.weight.detach().float()
    torch.testing.assert_close(ends["o2"], torch.full((1, 4), 1 - 20e-4), rtol=0, atol=1e-6)
    assert torch.equal(ends["o3"], torch.ones(1, 4))


@pytest.mark.parametrize(("name", "keep", "batchnorm", "layernorm"), [
    ("o2", "auto", torch.float32, torch.float32), ("o2", False, torch.float16, torch.float32),
    ("o3", "auto", torch.float16, torch.float16), ("o3", True, torch.float32, torch.float16),
])  # fmt: skip
def test_which_weights_are_half(name, keep, batchnorm, layernorm):
    model = net()
    precision = build(name, keep=keep)
    working = precision.prepare(model)
    assert (working[0].weight.dtype, working[1].weight.dtype, working[4].weight.dtype) == (torch.float16, batchnorm, layernorm)
    assert working[1].running_mean.dtype == batchnorm
    assert all((p.dtype == torch.float32) == (name == "o2" or p.dtype == torch.float32) for p in model.parameters())
    logits = working(torch.randn(2, 3, 8, 8))
    assert logits.dtype == torch.float32
    logits.sum().backward()


@pytest.mark.parametrize("name", ["o2", "o3"])
@pytest.mark.parametrize("dtype", HALVES)
def test_the_first_update_equals_float64s(name, dtype):
    """Within the format's error."""
    model = net()
    reference = deepcopy(model).double()
    x = torch.randn(8, 3, 8, 8)
    reference(x.double()).square().mean().backward()
    expected = {key: -0.1 * parameter.grad for key, parameter in reference.named_parameters()}
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    step(*ready(name, model, dtype, init_scale=256.0)[:3], x)
    eps = torch.finfo(TORCH[dtype]).eps
    for key, parameter in model.named_parameters():
        change = parameter.detach().double() - before[key].double()
        scale = expected[key].abs().max() + (before[key].abs().max() if name == "o3" else 0)
        assert (change - expected[key]).abs().max() <= 16 * eps * scale + 1e-6, key


@pytest.mark.parametrize("optim", [AdamWConfig(lr=0.01), SGDConfig(lr=0.01)])
@pytest.mark.parametrize("name", ["o2", "o3"])
def test_a_bad_gradient_touches_nothing_but_the_scale(name, optim):
    """A02: weights, moments and the count of updates stay; a dynamic scale halves, a static one stays."""
    for dynamic in (True, False):
        model = net()
        precision, working, optimizer, schedule = ready(name, model, optim=optim, init_scale=64.0, dynamic=dynamic)
        step(precision, working, optimizer, torch.randn(4, 3, 8, 8))
        before, moments = deepcopy(dict(working.named_parameters())), deepcopy(optimizer.state_dict()["state"])
        masters = [parameter.detach().clone() for parameter in model.parameters()]
        norm = step(precision, working, optimizer, torch.randn(4, 3, 8, 8), factor=float("inf"))
        assert not torch.isfinite(norm)
        assert all(torch.equal(a, b) for a, b in zip(masters, model.parameters(), strict=True))
        assert all(torch.equal(parameter, before[key]) for key, parameter in working.named_parameters())
        for index, state in optimizer.state_dict()["state"].items():
            assert all(torch.equal(value, moments[index][key]) for key, value in state.items())
        assert schedule.updates.item() == 1
        assert precision.loss_scale().item() == (32.0 if dynamic else 64.0)


@pytest.mark.parametrize("name", ["o2", "o3"])
def test_clipping_sees_unscaled_gradients(name):
    """A01: the true norm is told, and the update has the limit's length."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    reference = deepcopy(model).double()
    x = torch.ones(2, 8)
    reference(x.double()).square().mean().mul(30).backward()
    true_norm = torch.nn.utils.get_total_norm([p.grad for p in reference.parameters()])
    before = [p.detach().clone().float() for p in model.parameters()]
    precision, working, optimizer, _ = ready(name, model, init_scale=512.0)
    norm = step(precision, working, optimizer, x, clip_norm=0.5, factor=30.0)
    assert norm.item() == pytest.approx(true_norm.item(), rel=5e-3)
    moved = torch.cat([(a - b.detach().float()).flatten() for a, b in zip(before, model.parameters(), strict=True)]).norm()
    assert moved.item() == pytest.approx(0.1 * 0.5, rel=0.05)


def test_statistics_of_batch_norm_are_the_saved_ones():
    """The copy that computes and the model that is saved share them."""
    model = net()
    precision, working, optimizer, _ = ready("o2", model, init_scale=16.0)
    step(precision, working, optimizer, torch.randn(4, 3, 8, 8) + 3)
    assert model[1].running_mean.abs().sum() > 0
    assert torch.equal(model[1].running_mean, working[1].running_mean)
    assert model[1].num_batches_tracked.item() == working[1].num_batches_tracked.item() == 1


def test_weights_changed_from_outside_are_followed_after_refresh():
    """What restoring a checkpoint does."""
    model = net()
    precision = build("o2")
    working = precision.prepare(model)
    other = nn.init.constant_(torch.empty_like(model[0].weight), 0.3)
    model.load_state_dict(model.state_dict() | {"0.weight": other})
    precision.refresh()
    assert torch.equal(working[0].weight, other.half())
    assert torch.equal(precision.evaluable(model)[0].weight, other.half())


def test_accumulated_micro_batches_equal_one_batch():
    runs = []
    for pieces in (1, 4):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        precision, working, optimizer, _ = ready("o2", model, init_scale=64.0)
        for x in torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).chunk(pieces):
            precision.backward(working(x).square().mean() / pieces)
        precision.step(optimizer, clip_norm=None)
        runs.append(model.weight.detach())
    torch.testing.assert_close(*runs, rtol=1e-3, atol=1e-4)


class Counted(nn.Module):
    """A buffer that is no norm's, written in each forward pass, and a constant."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("constant", torch.tensor([0.1]))

    def forward(self, x):
        if self.training:
            self.calls.add_(1)
        return self.layer(x) * self.constant


def test_half_buffers_are_published_and_constants_keep_their_digits():
    model = Counted()
    precision, working, optimizer, _ = ready("o2", model)
    for _ in range(3):
        step(precision, working, optimizer, torch.ones(4, 2))
    assert working.calls.dtype == torch.float16
    precision.publish()
    assert (model.calls.dtype, model.calls.item(), model.constant.item()) == (torch.float32, 3.0, torch.tensor(0.1).item())
    model.calls.fill_(7)
    precision.refresh()
    assert working.calls.item() == 7


@pytest.mark.parametrize("fused", ["auto", False])
def test_half_gradients_pass_with_any_optimizer(fused):
    model = nn.Linear(4, 2)
    precision, working, optimizer, schedule = ready("o3", model, optim=AdamWConfig(lr=0.01, fused=fused), init_scale=64.0)
    before = model.weight.detach().clone()
    step(precision, working, optimizer, torch.ones(2, 4), target=1.0)
    assert model.weight.dtype == torch.float16
    assert schedule.count() == 1
    assert torch.isfinite(model.weight).all()
    assert not torch.equal(model.weight, before)
