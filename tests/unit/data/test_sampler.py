"""Index arithmetic of training and evaluation batches."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

from src.data.sampler import Plan, epoch_order, eval_batch_size, eval_spans
from src.errors import DataError


def windows(plan: Plan, *, rank: int, start_step: int = 0) -> list[list[list[int]]]:
    """Positions in the order: window -> micro-batch -> positions."""
    found: list[list[list[int]]] = [[]]
    for span in plan.spans(rank, start_step=start_step):
        found[-1].append(list(range(span.start, span.stop)))
        if span.last:
            assert len(found[-1]) == span.window
            found.append([])
    assert found.pop() == []
    return found


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    world_size, accumulate, length = draw(st.integers(1, 8)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    group = world_size * length
    return Plan(
        draw(st.integers(group, 6 * group * accumulate + 7)), batch_size=group * accumulate, accumulate=accumulate, world_size=world_size
    )


@given(plans())
def test_ranks_share_an_epoch_without_overlap_or_padding(plan: Plan) -> None:
    """F12: the images of all ranks are a gapless beginning of the order, each once, in micro-batches of one size."""
    by_rank = [windows(plan, rank=rank) for rank in range(plan.world_size)]
    used = sorted(position for steps in by_rank for window in steps for micro in window for position in micro)
    assert used == list(range(plan.images_per_epoch))
    assert plan.size - plan.images_per_epoch < plan.batch_size // plan.accumulate
    assert {len(steps) for steps in by_rank} == {plan.steps_per_epoch}
    lengths = {len(micro) for steps in by_rank for window in steps for micro in window}
    assert lengths == {plan.batch_size // plan.accumulate // plan.world_size}


@given(plans())
def test_images_of_a_step_do_not_depend_on_the_world_size(plan: Plan) -> None:
    """F13: batch_size is global; for equal batch_size and accumulate even each micro-step sees the same images."""

    def micro_steps(of: Plan) -> list[list[int]]:
        by_rank = [[micro for window in windows(of, rank=rank) for micro in window] for rank in range(of.world_size)]
        return [sorted(position for part in parts for position in part) for parts in zip(*by_rank, strict=True)]

    alone = Plan(plan.size, batch_size=plan.batch_size, accumulate=plan.accumulate, world_size=1)
    assert micro_steps(plan) == micro_steps(alone)


@given(plans(), st.data())
def test_starting_late_equals_skipping(plan: Plan, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.steps_per_epoch))
    rank = data.draw(st.integers(0, plan.world_size - 1))
    assert windows(plan, rank=rank, start_step=start) == windows(plan, rank=rank)[start:]


def test_last_window_is_flushed_with_its_true_length() -> None:
    """A14: 5 micro-batches with accumulate=4 are two updates, over 4 and over 1."""
    plan = Plan(10, batch_size=8, accumulate=4, world_size=1)
    assert [(span.window, span.last) for span in plan.spans(0)] == [(4, False), (4, False), (4, False), (4, True), (1, True)]
    assert (plan.steps_per_epoch, plan.images_per_epoch) == (2, 10)


def test_lone_samples_are_dropped() -> None:
    """F12: 9 images in batches of 4 leave one image out; 10 on 2 ranks leave two."""
    assert Plan(9, batch_size=4, accumulate=1, world_size=1).images_per_epoch == 8
    assert Plan(10, batch_size=4, accumulate=1, world_size=2).images_per_epoch == 8


def test_too_few_images_for_one_step_name_the_sizes() -> None:
    with pytest.raises(DataError, match=r"train\.batch_size=64 .*at least 32 training images but the data has 31"):
        Plan(31, batch_size=64, accumulate=2, world_size=1)


def test_order_differs_by_epoch_and_seed_and_repeats() -> None:
    """F05."""
    orders = [epoch_order(50, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(order.sort().values.equal(torch.arange(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 6
    assert epoch_order(50, seed=1, epoch=2).equal(orders[-1])


def test_order_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    epoch_order(50, seed=0, epoch=0)
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("size", range(1, 18))
def test_evaluation_visits_every_image_once(size: int) -> None:
    """F01, F02: for every world size and batch size; whole batches, the same for any world size."""
    for batch_size in range(1, 6):
        oracle = list(BatchSampler(SequentialSampler(range(size)), batch_size, drop_last=False))
        for world_size in range(1, 9):
            by_rank = [
                [list(range(span.start, span.stop)) for span in eval_spans(size, batch_size=batch_size, rank=rank, world_size=world_size)]
                for rank in range(world_size)
            ]
            assert all(batches == oracle[rank::world_size] for rank, batches in enumerate(by_rank))


def test_evaluation_batch_has_a_limit() -> None:
    assert eval_batch_size(64, accumulate=4) == 32
    assert eval_batch_size(8192, accumulate=1) == 1024
