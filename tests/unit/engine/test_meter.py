"""The meter against numpy and against plain Python bookkeeping."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from src.data.base import Mixed
from src.engine.meter import Meter, Reading
from src.errors import ExitCode
from src.parallel.single import Single
from src.runtime.rank import Rank


class Twins(Single):
    """A second rank whose sums are the same but for its wish to end."""

    def __init__(self, other_stop: int) -> None:
        super().__init__(Rank(world_size=2))
        self.other_stop = other_stop

    def sum_(self, tensor: Tensor) -> Tensor:
        wishes = torch.tensor([self.other_stop == ExitCode.INTERRUPTED, self.other_stop == ExitCode.TERMINATED])
        tensor += torch.cat((tensor[:3], wishes.to(tensor.dtype), tensor[5:]))
        return tensor


def add_step(meter: Meter, step: int, updates: int, *, moved: bool = True, lr: float = 0.1, norm: float = 1.0, scale: float = 1.0) -> None:
    meter.add_step(
        step,
        moved=torch.tensor([moved]),
        updates=torch.tensor([updates]),
        lr=torch.tensor(lr),
        grad_norm=torch.tensor(norm),
        loss_scale=torch.tensor(scale),
    )


def read_after(skips: list[bool], *, first_step: int = 1, start: int = 0) -> Reading:
    """One reading after steps that were skipped where ``skips`` says so."""
    meter = Meter(Single(Rank()))
    updates = start
    for step, skipped in enumerate(skips, first_step):
        updates += not skipped
        add_step(meter, step, updates, moved=not skipped)
    return meter.read(stop=0)


def test_sums_equal_numpys():
    generator = torch.Generator().manual_seed(0)
    meter = Meter(Single(Rank()))
    losses, hits, sizes = [], [], [1, 7, 64, 3, 2]
    for size in sizes:
        logits, labels = torch.randn(size, 4, generator=generator), torch.randint(4, (size,), generator=generator)
        loss = torch.rand((), generator=generator)
        meter.add_batch(loss, logits, labels)
        losses.append(loss.item())
        hits.append(int((logits.numpy().argmax(axis=1) == labels.numpy()).sum()))
    add_step(meter, 1, 1, lr=0.25, norm=3.5, scale=2.0**16)
    reading = meter.read(stop=0)
    assert reading.loss == pytest.approx(np.average(losses, weights=sizes), rel=1e-12)
    assert reading.accuracy == sum(hits) / sum(sizes)
    assert (reading.images, reading.lr, reading.grad_norm, reading.loss_scale) == (77, 0.25, 3.5, 65536.0)


def test_either_label_of_a_mixed_image_is_a_hit_by_its_share():
    meter = Meter(Single(Rank()))
    logits = torch.eye(3)[[0, 1, 2, 0]]
    meter.add_batch(torch.tensor(1.0), logits, torch.tensor([0, 0, 0, 0]), mixed=Mixed(torch.tensor([1, 1, 1, 0]), torch.full((4,), 0.25)))
    assert meter.read(stop=0).accuracy == (0.75 + 0.25 + 0 + 1) / 4


def test_many_small_losses_do_not_drown_in_a_large_sum():
    """float32 sums would stop growing at 2**24 images."""
    meter = Meter(Single(Rank()))
    labels = torch.zeros(1 << 20, dtype=torch.int64)
    logits = torch.zeros(1, 2).expand(1 << 20, 2)
    for _ in range(17):
        meter.add_batch(torch.tensor(1.0), logits, labels)
    meter.add_batch(torch.tensor(1.0), logits[:1], labels[:1])
    assert meter.read(stop=0).images == 17 * 2**20 + 1


def test_a_reset_empties_the_sums_and_keeps_the_skips():
    meter = Meter(Single(Rank()))
    meter.add_batch(torch.tensor(1.0), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    add_step(meter, 1, 0, moved=False)
    assert meter.read(stop=0) == meter.read(stop=0)  # reading changes nothing
    meter.reset()
    add_step(meter, 2, 0, moved=False)
    reading = meter.read(stop=0)
    assert reading.images == 0
    assert np.isnan(reading.loss)
    assert np.isnan(reading.accuracy)
    assert (reading.consecutive_skips, reading.first_bad_step) == (2, 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 10**7), st.integers(0, 10**7))
def test_skips_in_a_row_and_where_they_began(skips, first_step, start):
    reading = read_after(skips, first_step=first_step, start=start)
    in_a_row = next((number for number, skipped in enumerate(reversed(skips)) if not skipped), len(skips))
    assert reading.consecutive_skips == in_a_row
    assert reading.updates == start + skips.count(False)
    if in_a_row:
        assert reading.first_bad_step == first_step + len(skips) - in_a_row


@pytest.mark.parametrize(
    ("mine", "other", "agreed"),
    [(0, 0, 0), (130, 0, 130), (0, 130, 130), (143, 0, 143), (0, 143, 143), (130, 130, 130), (143, 143, 143), (130, 143, 143)],
)
def test_a_signal_to_any_rank_stops_all_with_one_code(mine, other, agreed):
    for own, others in ((mine, other), (other, mine)):
        assert Meter(Twins(others)).read(stop=own).stop == agreed


def test_sums_are_over_all_ranks():
    meter = Meter(Twins(0))
    meter.add_batch(torch.tensor(2.0), torch.tensor([[0.0, 1.0]] * 3), torch.tensor([1, 1, 0]))
    add_step(meter, 1, 1, lr=0.5)
    reading = meter.read(stop=0)
    assert (reading.images, reading.loss, reading.updates, reading.lr) == (6, 2.0, 1, 0.5)
    assert reading.accuracy == pytest.approx(2 / 3)


def test_the_training_graph_is_not_kept_alive():
    meter = Meter(Single(Rank()))
    weight = torch.ones(2, requires_grad=True)
    logits = torch.zeros(4, 2) * weight
    meter.add_batch(logits.sum(), logits, torch.zeros(4, dtype=torch.int64))
    assert not meter._sums.requires_grad
