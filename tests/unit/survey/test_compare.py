"""What the proof of a resume would find: one bit, one key, one random number."""

from copy import deepcopy

import pytest
import torch

from src.survey.compare import compare_payloads, compare_points, content
from src.tracking.base import Point


def payload():
    return {
        "model": {"conv.weight": torch.linspace(-1, 1, 24).view(2, 3, 4), "bn.num_batches_tracked": torch.tensor(7)},
        "ema": None,
        "optimizer": {"state": {0: {"exp_avg": torch.ones(24), "step": torch.tensor(7.0)}}, "param_groups": [{"lr": torch.tensor(0.1)}]},
        "schedule": {"updates": 7, "best": float("nan")},
        "precision": {"scale": 1024.0},
        "state": {"step": 7, "metrics": {"train/loss": 0.5, "perf/step_ms": 3.0}, "train_seconds": 1.0, "train_images": 64},
        "config": {"resume": None},
        "ranks": [{"rng": {"torch": torch.arange(16, dtype=torch.uint8), "python": [3, [1, 2], None]}} for _ in range(2)],
    }


def found(change):
    other = deepcopy(payload())
    change(other)
    return [str(difference) for difference in compare_payloads(7, payload(), other)]


def flip_bit(tensor, byte=0):
    tensor.view(-1).view(torch.uint8)[byte] ^= 1


def test_equal_checkpoints_have_no_difference():
    """NaN is itself; speed and the config that says how the process was started are no part of it."""

    def change(other):
        other["state"]["metrics"]["perf/step_ms"] = 4.0
        other["state"]["metrics"]["perf/epoch_seconds"] = 4.0
        other["state"]["train_seconds"] = 2.0
        other["config"]["resume"] = "x"

    assert found(change) == []


def change_rng(other):
    other["ranks"][1]["rng"]["python"][1][1] = 3


def shrink(other):
    other["ranks"].pop()


def retype(other):
    other["model"]["conv.weight"] = other["model"]["conv.weight"].double()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: flip_bit(p["model"]["conv.weight"]), "step 7, model/conv.weight: 1 of 24 values differ, by up to 1.19e-07"),
        (
            lambda p: flip_bit(p["optimizer"]["state"][0]["exp_avg"], 95),
            "step 7, optimizer/state/0/exp_avg: 1 of 24 values differ, by up to 0.75",
        ),
        (lambda p: p["model"]["bn.num_batches_tracked"].add_(1), "step 7, model/bn.num_batches_tracked: 1 of 1 values differ, by up to 1"),
        (lambda p: p["optimizer"]["state"][0].pop("step"), "step 7, optimizer/state/0/step: only in the run that went straight on"),
        (lambda p: p["schedule"].update(new=1), "step 7, schedule/new: only in the run that was resumed"),
        (lambda p: p.update(ema={}), "step 7, ema: None and {}"),
        (lambda p: p.pop("ema"), "step 7, ema: only in the run that went straight on"),
        (lambda p: p["schedule"].update(updates=7.0), "step 7, schedule/updates: 7 and 7.0"),
        (lambda p: p["precision"].update(scale=512.0), "step 7, precision/scale: 1024.0 and 512.0"),
        (
            lambda p: p["state"]["metrics"].update({"train/loss": 0.5 + 2**-53}),
            "step 7, state/metrics/train/loss: 0.5 and 0.5000000000000001",
        ),
        (lambda p: p["ranks"][0]["rng"]["torch"].add_(1), "step 7, ranks/0/rng/torch: 16 of 16 values differ, by up to 1"),
        (change_rng, "step 7, ranks/1/rng/python/1/1: 2 and 3"),
        (shrink, "step 7, ranks: 2 and 1 entries"),
        (retype, "step 7, model/conv.weight: torch.float32 [2, 3, 4] and torch.float64 [2, 3, 4]"),
    ],
)
def test_any_change_is_found_and_named(change, expected):
    assert found(change) == [expected]


def test_zero_is_not_minus_zero():
    one, other = {"model": {"w": torch.zeros(2), "x": 0.0}}, {"model": {"w": -torch.zeros(2), "x": 0.0}}
    assert [difference.how for difference in compare_payloads(1, one, other)] == ["2 of 2 values differ, by up to 0"]
    assert compare_payloads(1, {"s": 0.0}, {"s": -0.0})


def test_nan_in_a_tensor_is_itself():
    weights = {"model": {"w": torch.tensor([float("nan"), 1.0])}}
    assert compare_payloads(1, weights, deepcopy(weights)) == []


def test_each_part_that_differs_is_listed_once_in_order():
    def change(other):
        flip_bit(other["optimizer"]["state"][0]["exp_avg"])
        flip_bit(other["optimizer"]["state"][0]["step"])
        flip_bit(other["model"]["conv.weight"])

    assert [line.split(":")[0] for line in found(change)] == ["step 7, model/conv.weight", "step 7, optimizer/state/0/exp_avg"]


def test_metric_points_are_compared_from_the_resumed_step_on_without_speed():
    def points(*changes):
        values = {(step, name): float(step) for step in (5, 6, 7, 8) for name in ("train/loss", "perf/step_ms")} | dict(changes)
        return [Point(name, value, step, 0.0) for (step, name), value in values.items()]

    nan = ((7, "val/loss"), float("nan"))
    assert compare_points(points(nan), points(nan, ((5, "train/loss"), 9.0), ((8, "perf/step_ms"), 9.0)), after=6) == []
    found = compare_points(points(((8, "val/ece"), 0.1)), points(((7, "train/loss"), 7.5)), after=6)
    assert [str(difference) for difference in found] == [
        "step 7, metric points/train/loss: 7.0 and 7.5",
        "step 8, metric points/val/ece: only in the run that went straight on",
    ]


def test_what_is_compared_is_counted():
    counted = content(payload())
    assert set(counted) == set(payload()) - {"config"}
    assert counted["model"] == {"tensors": 2, "values": 25}
    assert counted["state"] == {"others": 2}
    assert counted["ranks"] == {"tensors": 2, "values": 32, "others": 8}
