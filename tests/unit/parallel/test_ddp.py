"""DistributedDataParallel in a group of one."""

import copy
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from src.config.schema import Backend, CommHook, DDPConfig, PrecisionConfig
from src.errors import ConfigError
from src.parallel.ddp import DDP
from src.parallel.group import WATCH_SECONDS
from src.precision import build_precision
from src.runtime.rank import Rank

FP32 = build_precision(PrecisionConfig(name="fp32"), device=torch.device("cpu"))


@pytest.fixture
def ddp(group):
    """The mode with default settings, entered."""
    mode = DDP(DDPConfig(), rank=Rank())
    mode.enter()
    return mode


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))


def images(count=6):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def gradients(mode, model, *, windows=1):
    """Gradients after ``windows`` micro-batches, exchanged in the last."""
    wrapped = mode.wrap(model, FP32)
    for number, batch in enumerate(images().chunk(windows)):
        with mode.accumulate(wrapped, last=number == windows - 1):
            (wrapped(batch).square().mean() / windows).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def plain_gradients(model, *, windows=1):
    for batch in images().chunk(windows):
        (model(batch).square().mean() / windows).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_a_group_is_entered_and_left(group):
    mode = DDP(DDPConfig(timeout_seconds=17, backend=Backend.gloo), rank=Rank())
    mode.enter()
    assert group == [("gloo", {"timeout": timedelta(seconds=17 + WATCH_SECONDS), "device_id": None})]
    assert dist.get_world_size() == 1
    mode.exit()
    assert not dist.is_initialized()


def test_the_wrapped_module_shares_parameters_and_buffers(ddp):
    """E03: the bare module is what is saved, without prefixes."""
    model = net()
    wrapped = ddp.wrap(model, FP32)
    assert isinstance(wrapped, DistributedDataParallel)
    assert wrapped.module is model
    assert all(one is other for one, other in zip(wrapped.parameters(), model.parameters(), strict=True))
    wrapped(images())
    assert model[1].num_batches_tracked == 1


@pytest.mark.parametrize("windows", [1, 2, 3])
@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("static", [True, False])
def test_gradients_equal_those_of_the_bare_module(group, windows, view, static):
    """Accumulation through no_sync, with and without gradients that are views of the buckets, and a graph that never changes."""
    mode = DDP(DDPConfig(gradient_as_bucket_view=view, static_graph=static), rank=Rank())
    mode.enter()
    torch.testing.assert_close(gradients(mode, net(), windows=windows), plain_gradients(net(), windows=windows))


def test_only_the_last_micro_batch_exchanges(ddp):
    wrapped = ddp.wrap(net(), FP32)
    exchanged = []

    def hook(state, bucket):
        exchanged.append(bucket.index())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapped.register_comm_hook(None, hook)
    for last in (False, False, True):
        with ddp.accumulate(wrapped, last=last):
            wrapped(images()).sum().backward()
        assert bool(exchanged) is last
    assert isinstance(ddp.accumulate(wrapped, last=True), nullcontext)


@pytest.mark.parametrize(("hook", "dtype"), [(CommHook.fp16, torch.float16), (CommHook.bf16, torch.bfloat16)])
def test_a_compressed_exchange_is_as_exact_as_its_format(group, hook, dtype):
    """Rounded once to the format on the way: the relative error is at most half a unit in the last place."""
    mode = DDP(DDPConfig(comm_hook=hook), rank=Rank())
    mode.enter()
    sent, exact = gradients(mode, net()), plain_gradients(net())
    half_unit, tiny = torch.finfo(dtype).eps / 2, torch.finfo(dtype).smallest_normal
    changed = 0
    for name, value in exact.items():
        torch.testing.assert_close(sent[name], value, rtol=half_unit * 1.01, atol=tiny)
        changed += int((sent[name] != value).sum())
    assert changed  # it is compressed at all


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_buffers_become_the_mean_over_ranks(ddp, world_size):
    """The other ranks are simulated: the sum that comes back is that of all. Integer counters stay each rank's own."""
    ranks = [net() for _ in range(world_size)]
    for number, model in enumerate(ranks):
        for _ in range(number + 1):
            model(images() * (number + 1) + number)
    expected = {
        name: torch.stack([dict(model.named_buffers())[name].double() for model in ranks]).mean(dim=0)
        for name in ("1.running_mean", "1.running_var")
    }
    ddp.rank = Rank(world_size=world_size)
    alone = [copy.deepcopy(model) for model in ranks]

    def sum_(tensor):
        flat = [torch.cat([model[1].running_mean, model[1].running_var]).double() for model in alone]
        assert any(torch.equal(tensor, own) for own in flat)
        return tensor.copy_(torch.stack(flat).sum(dim=0))

    if world_size > 1:
        ddp.sum_ = sum_
    for number, model in enumerate(ranks):
        ddp.sync_buffers(model)
        found = dict(model.named_buffers())
        for name, mean in expected.items():
            torch.testing.assert_close(found[name].double(), mean, rtol=1e-6, atol=1e-7)
        assert found["1.num_batches_tracked"] == number + 1


def test_a_model_without_buffers_sends_nothing(ddp, monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **kwargs: pytest.fail("sent"))
    ddp.sync_buffers(nn.Linear(2, 2))


def test_sums_decisions_and_objects(ddp):
    tensor = torch.tensor([1.0, float("nan")], dtype=torch.float64)
    assert ddp.sum_(tensor) is tensor
    assert tensor[0] == 1
    assert ddp.gather({"rank": 0}) == [{"rank": 0}]


def test_sync_batchnorm_needs_a_gpu_and_is_plain_batchnorm_on_a_cpu(group):
    mode = DDP(DDPConfig(sync_batchnorm=True), rank=Rank())
    mode.enter()
    assert type(mode.wrap(net(), FP32).module[1]) is nn.BatchNorm2d


class WithUnusedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 7)

    def forward(self, x):
        return self.used(x)


def one_step(mode, wrapped):
    with mode.accumulate(wrapped, last=True):
        wrapped(torch.ones(2, 4)).sum().backward()


def test_parameters_without_a_gradient_are_named_at_the_first_exchange(ddp):
    """B15: torch itself complains a step later and names none."""
    with pytest.raises(ConfigError, match=r"parameters: unused.weight, unused.bias; .*parallel.find_unused_parameters=true"):
        one_step(ddp, ddp.wrap(WithUnusedHead(), FP32))


def test_they_are_allowed_on_demand(group):
    mode = DDP(DDPConfig(find_unused_parameters=True), rank=Rank())
    mode.enter()
    wrapped = mode.wrap(WithUnusedHead(), FP32)
    for _ in range(3):
        one_step(mode, wrapped)


def test_frozen_parameters_are_no_fault(ddp):
    model = WithUnusedHead()
    model.unused.requires_grad_(False)
    wrapped = ddp.wrap(model, FP32)
    for _ in range(3):
        one_step(ddp, wrapped)
