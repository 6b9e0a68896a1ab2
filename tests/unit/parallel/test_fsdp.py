"""fully_shard in a group of one; what several ranks do is the integration tests' part."""

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchvision import models

from src.config.schema import Dtype, FSDPConfig, PrecisionConfig, ScalerConfig
from src.engine.ema import WeightAverage, copy_for_average
from src.errors import ConfigError
from src.parallel import build_parallel
from src.parallel.fsdp import FSDP, find_units, has_only_vectors
from src.precision import build_precision
from src.runtime.rank import Rank

CPU = torch.device("cpu")


@pytest.fixture
def fsdp(group):
    """The mode with default settings, entered."""
    mode = FSDP(FSDPConfig(), rank=Rank())
    mode.enter()
    return mode


def net():
    """Two blocks with batch norm and a head: the first is a unit, the large layer of the second too."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        nn.Flatten(),
        nn.Sequential(nn.Linear(4 * 36, 8), nn.ReLU(inplace=True)),
        nn.Linear(8, 3),
    )


def images(count=6):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def mode_of(name, **settings):
    return build_precision(PrecisionConfig(name=name, **settings), device=CPU)


def train(model, *, wrapped=None, mode=None, precision, optimizer, steps=3, windows=2):
    """Steps of ``windows`` micro-batches, with clipping; returns the gradient norms."""
    norms = []
    for _ in range(steps):
        for number, batch in enumerate(images().chunk(windows)):
            if mode is None:
                with precision.autocast():
                    loss = model(batch).float().square().mean()
                precision.backward(loss / windows)
                continue
            with mode.accumulate(wrapped, last=number == windows - 1):
                with precision.autocast():
                    loss = wrapped(batch).float().square().mean()
                precision.backward(loss / windows)
        norms.append(float(precision.step(optimizer, clip_norm=0.1)))
        optimizer.zero_grad(set_to_none=True)
    return norms


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.01), fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=torch.tensor(0.1), momentum=0.9, fused=True),
}


def precision_of(key):
    dtype = Dtype.float16 if key == "amp" else Dtype.auto
    return mode_of(key, dtype=dtype, scaler=ScalerConfig(init_scale=256.0))


@pytest.mark.parametrize("key", ["fp32", "bf16", "amp"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_equals_the_bare_module(fsdp, kind, key):
    """Accumulation, clipping at the true norm, fused updates and the scaler, all on shares; the state dicts have the same keys."""
    plain = net()
    optimizer = OPTIMIZERS[kind](plain.parameters())
    expected = train(plain, precision=precision_of(key), optimizer=optimizer)

    model, precision = net(), precision_of(key)
    wrapped = fsdp.wrap(model, precision)
    own = OPTIMIZERS[kind](fsdp.owned(model).parameters())
    found = train(model, wrapped=wrapped, mode=fsdp, precision=precision, optimizer=own)

    assert found == pytest.approx(expected, rel=1e-5)
    state = fsdp.model_state(model)
    assert list(state) == list(plain.state_dict())
    torch.testing.assert_close(state, dict(plain.state_dict()), rtol=1e-5, atol=1e-6)
    moments, reference = fsdp.optimizer_state(own), optimizer.state_dict()
    assert moments["state"].keys() == reference["state"].keys()
    torch.testing.assert_close(moments["state"], reference["state"], rtol=1e-4, atol=1e-6)
    assert not any(isinstance(tensor, DTensor) for values in moments["state"].values() for tensor in values.values())


def test_the_weights_that_are_trained_are_the_shards(fsdp, fp32):
    model = net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert fsdp.wrap(model, fp32) is model
    owned = list(fsdp.owned(model).parameters())
    assert [tuple(own.shape) for own in owned] == [tuple(tensor.shape) for tensor in net().parameters()]
    assert not any(isinstance(own, DTensor) for own in owned)
    with torch.no_grad():
        for own in owned:
            own.add_(1)
    for name, parameter in fsdp.whole(model).named_parameters():
        torch.testing.assert_close(parameter, before[name] + 1)


def test_frozen_weights_stay_frozen(fsdp, fp32):
    model = net()
    model[0].requires_grad_(False)
    wrapped = fsdp.wrap(model, fp32)
    owned = list(fsdp.owned(model).parameters())
    assert [own.requires_grad for own in owned] == [False] * 4 + [True] * 4
    with fsdp.accumulate(wrapped, last=True):
        wrapped(images()).sum().backward()
    assert [own.grad is not None for own in owned] == [False] * 4 + [True] * 4


def test_the_whole_module_is_bare_and_a_copy(fsdp):
    """Evaluation calls it without the other ranks: the same logits as the bare network under the same autocast."""
    model, plain = net(), net()
    fsdp.wrap(model, mode_of("bf16"))
    whole = fsdp.whole(model)
    assert type(whole) is type(plain)
    assert not any(isinstance(tensor, DTensor) for tensor in whole.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(whole.eval()(images()), plain.eval()(images()))
    with torch.no_grad():
        whole[0][1].running_mean.add_(1)
    assert torch.equal(model[0][1].running_mean, plain[0][1].running_mean)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_checkpoints_of_other_modes_load(fsdp, fp32, layout):
    """E03: whole plain state dicts, in both directions; also for weights in another memory format."""
    other = net()
    optimizer = OPTIMIZERS["adamw"](other.parameters())
    train(other, precision=fp32, optimizer=optimizer)
    model = net().to(memory_format=layout)
    fsdp.wrap(model, fp32)
    own = OPTIMIZERS["adamw"](fsdp.owned(model).parameters())
    fsdp.load_model(model, other.state_dict())
    fsdp.load_optimizer(own, optimizer.state_dict())
    torch.testing.assert_close(fsdp.model_state(model), dict(other.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(fsdp.optimizer_state(own)["state"], optimizer.state_dict()["state"], rtol=0, atol=0)
    torch.testing.assert_close(dict(fsdp.whole(model).state_dict()), dict(other.state_dict()), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        fsdp.load_model(model, dict(other.state_dict()) | {"other": torch.zeros(1)})


def test_an_average_is_sharded_without_being_called(fsdp, fp32):
    average = net().requires_grad_(False)
    fsdp.shard(average)
    assert all(isinstance(parameter, DTensor) for parameter in average.parameters())
    torch.testing.assert_close(dict(fsdp.whole(average).state_dict()), dict(net().state_dict()), rtol=0, atol=0)


def test_only_weights_of_matmuls_and_convolutions_are_gathered_in_half(fsdp):
    """Norms and what lies outside the units compute with float32 weights, as under autocast."""
    model = net()
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.Linear):
            module.register_forward_hook(lambda module, args, output, name=name: seen.update({name: module.weight.dtype}))
    wrapped = fsdp.wrap(model, mode_of("bf16"))
    with torch.autocast("cpu", torch.bfloat16):
        wrapped(images())
    assert seen == {"0.0": torch.bfloat16, "0.1": torch.float32, "2.0": torch.bfloat16, "3": torch.float32}


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (models.alexnet, ["features", "classifier.1", "classifier.4"]),
        (models.resnet50, ["layer1", "layer2", *(f"layer3.{i}" for i in range(6)), *(f"layer4.{i}" for i in range(3))]),
        (models.vit_b_16, [*(f"encoder.layers.encoder_layer_{i}" for i in range(12)), "heads"]),
    ],
)
def test_units_are_the_blocks_of_a_network(build, expected):
    with torch.device("meta"):
        model = build()
    names = {module: name for name, module in model.named_modules()}
    units = find_units(model)
    assert [names[unit] for unit in units] == expected
    assert {type(module) for unit in units for module in unit.modules() if has_only_vectors(module)} <= {nn.BatchNorm2d, nn.LayerNorm}


def test_a_parameter_without_a_dimension_is_refused(fsdp, fp32):
    model = net()
    model.temperature = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ConfigError, match="parameter temperature is a single number"):
        fsdp.wrap(model, fp32)


def test_the_name_chooses_the_mode():
    assert type(build_parallel(FSDPConfig(), rank=Rank())) is FSDP
    assert build_parallel(FSDPConfig(), rank=Rank(device=torch.device("cuda", 0))).backend == "nccl"


def test_an_average_of_shared_weights_and_batch_statistics(fsdp):
    """The same as that of a network that nobody shares."""
    alone, shared = net(), net()
    own, start = copy_for_average(alone), copy_for_average(shared)
    wrapped = fsdp.wrap(shared, mode_of("fp32"))
    fsdp.shard(start)
    averages = [WeightAverage(alone, own, decay=0.5), WeightAverage(shared, start, decay=0.5)]
    for number, average in enumerate(averages):
        (alone, wrapped)[number](images())
        average.update(torch.tensor([1]), moved=torch.tensor([True]))
    found, expected = fsdp.whole(averages[1].model).state_dict(), own.state_dict()
    assert found["0.1.running_mean"].abs().sum() > 0
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor)
