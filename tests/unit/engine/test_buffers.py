"""What a forward pass writes into buffers counts only with its update."""

import pytest
import torch
from torch import nn

from src.engine.buffers import HeldBuffers
from src.engine.loop import fit
from src.engine.state import TrainState

from .conftest import assert_same, change_batches

MOVED = torch.tensor([True])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
        self.register_buffer("calls", torch.ones(2, 2, dtype=torch.float16))
        self.register_buffer("places", torch.arange(1).expand(5), persistent=False)

    def forward(self, x):
        self.calls.add_(1)
        return self.norms(x)


def test_they_follow_real_updates_and_go_back_after_a_skipped_one():
    net = Net()
    held = HeldBuffers(net)
    held.hold()
    for number, images in enumerate((torch.randn(4, 3), torch.full((4, 3), torch.inf), torch.randn(4, 3))):
        before = {name: buffer.clone() for name, buffer in net.named_buffers()}
        net(images)
        after = {name: buffer.clone() for name, buffer in net.named_buffers()}
        assert (number == 1) == (not torch.isfinite(after["norms.0.running_mean"]).all())
        held.settle(MOVED if number != 1 else ~MOVED)
        assert_same(dict(net.named_buffers()), after if number != 1 else before)


def test_a_network_without_buffers():
    held = HeldBuffers(nn.Linear(2, 2))
    held.hold()
    held.settle(~MOVED)


@pytest.mark.parametrize("precision", [{"name": "fp32"}, {"name": "o2"}, {"name": "o2", "keep_batchnorm_fp32": False}, {"name": "o3"}])
def test_images_that_overflow_leave_no_trace_in_batch_norm(make_parts, precision):
    parts = make_parts(precision=precision, train={"ema_decay": 0.9, "max_steps": 5})

    def spoil(batch, number):
        if number == 3:
            batch.images[0] = torch.inf
        return batch

    change_batches(parts, spoil)
    fit(parts, TrainState())
    assert parts.schedule.count() == 4
    for network in (parts.working, parts.model, parts.average.model):
        norm = network[2]
        assert torch.isfinite(norm.running_mean).all()
        assert torch.isfinite(norm.running_var).all()
        assert norm.running_mean.abs().sum() > 0
        assert norm.num_batches_tracked == 4
