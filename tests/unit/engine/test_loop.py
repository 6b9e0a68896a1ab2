"""Whole small runs: going on after a stop, ends, the best, and what is read, evaluated, saved and written when."""

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from src import network
from src.checkpoint.load import load
from src.engine import loop, snapshot
from src.engine.report import current_epoch, eta
from src.engine.state import TrainState
from src.errors import ExitCode, NonFiniteError, Stopped
from src.runtime.rank import Rank
from src.tracking.journal import read_points

from .conftest import assert_same, change_batches, history, weights

FLOAT16 = {"name": "amp", "dtype": "float16", "scaler": {"init_scale": 256.0, "growth_interval": 2}}
PRECISIONS = {"fp32": {"name": "fp32"}, "bf16": {"name": "amp", "dtype": "bfloat16"}, "fp16": FLOAT16}
HALF = {"o2": FLOAT16 | {"name": "o2"}, "o3": FLOAT16 | {"name": "o3"}}
CONTRACT = {
    "train/loss", "train/accuracy", "train/lr", "train/grad_norm", "val/loss", "val/accuracy", "val/top5", "val/ece",
    "perf/images_per_second",
    "perf/step_ms", "perf/epoch_seconds", "perf/data_wait", "perf/peak_memory_gib", "amp/scale", "amp/skipped_updates",
    "amp/nonfinite_gradients", "amp/underflow_share",
}  # fmt: skip


def fit(parts):
    state = TrainState()
    loop.fit(parts, state)
    return state


def newest(parts):
    return load(max((parts.run_dir / "checkpoints").glob("step-*.pt")))


def saved_steps(parts):
    return [int(path.stem.removeprefix("step-")) for path in sorted((parts.run_dir / "checkpoints").glob("step-*.pt"))]


def stop_after(make_parts, step, code=ExitCode.TERMINATED, **sections):
    """Parts of a run that is told to stop while step number ``step`` is computed."""
    told = []
    parts = make_parts(stop=lambda: code if told else 0, **sections)

    def tell(batch, number):
        if number == step:
            told.append(number)
        return batch

    change_batches(parts, tell)
    return parts


def scripted_evaluations(monkeypatch, name, values):
    """Let each evaluation in turn give one of ``values`` for a metric."""
    original, left = loop.evaluate, iter(values)
    monkeypatch.setattr(loop, "evaluate", lambda *args, **kwargs: replace(original(*args, **kwargs), **{name: next(left)}))


WAYS = {
    "cosine": {"schedule": {"name": "cosine", "warmup_steps": 2}},
    "fp16": {"precision": PRECISIONS["fp16"], "schedule": {"name": "onecycle"}, "train": {"ema_decay": 0.9}},
    "bf16": {
        "precision": PRECISIONS["bf16"],
        "schedule": {"name": "multistep", "milestones": [1], "warmup_steps": 3},
        "train": {"clip_norm": 0.5},
    },
    "o2": {"precision": HALF["o2"], "train": {"ema_decay": 0.5}},
    "o3": {"precision": HALF["o3"]},
    "plateau": {"optim": {"name": "sgd", "lr": 0.5}, "schedule": {"name": "plateau", "patience": 0}, "train": {"accumulate": 2}},
    "early stop": {"optim": {"name": "sgd", "lr": 5.0}, "train": {"early_stop_patience": 1, "epochs": 9}},
    "changed images": {"data": {"augment": {"flip": True, "crop_padding": 1, "mixup": 0.3}}},
}


def values(parts):
    """(step, name) -> value of every recorded metric but times."""
    points, _ = read_points(parts.run_dir / "metrics.jsonl")
    return {(point.step, point.name): point.value for point in points if not point.name.startswith("perf/")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stop", [1, 3, 4, 5, 8])
def test_going_on_after_a_stop_gives_the_same_bits(make_parts, way, stop):
    """E01, E08, E12, F05: weights, their average, running statistics, moments, scale, rates, random states, best-so-far and metrics.

    Stops cut through log windows of three steps and through epochs of five.
    """
    settings = {**WAYS[way], "train": {"log_every": 3} | WAYS[way].get("train", {})}
    whole = make_parts(run="whole", **settings)
    expected = fit(whole)
    part = stop_after(make_parts, stop, run="part", **settings)
    with pytest.raises(Stopped):
        fit(part)
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    resumed = make_parts(run="resumed", **settings)
    state = snapshot.restore(resumed, newest(part))
    assert 0 < state.step == resumed.first_step < expected.step
    loop.fit(resumed, state)

    one, other = newest(resumed), newest(whole)
    for name in ("model", "ema", "optimizer", "schedule", "precision", "ranks"):
        assert_same(one[name], other[name])
    assert values(part) | values(resumed) == values(whole)
    for name in ("step", "updates", "epoch", "best_value", "best_step", "best_epoch", "is_best", "bad_evaluations", "train_images"):
        assert getattr(state, name) == getattr(expected, name), name


@pytest.mark.parametrize("at", [2, 6, 7])
def test_a_checkpoint_in_mid_epoch_changes_nothing_and_can_be_gone_on_from(make_parts, at):
    """E10: with ``save.every_steps``, as after a SIGKILL."""
    settings = {"train": {"log_every": 3, "ema_decay": 0.9}, "schedule": {"name": "cosine"}}
    whole = make_parts(run="whole", **settings)
    fit(whole)
    saving = make_parts(run="saving", save={"every_steps": at, "keep": 9}, **settings)
    fit(saving)
    assert values(saving) == values(whole)
    resumed = make_parts(run="resumed", **settings)
    state = snapshot.restore(resumed, load(saving.run_dir / f"checkpoints/step-{at:08d}.pt"))
    loop.fit(resumed, state)
    for name in ("model", "ema", "optimizer", "schedule", "precision", "ranks"):
        assert_same(newest(saving)[name], newest(whole)[name])
        assert_same(newest(resumed)[name], newest(whole)[name])


@pytest.mark.parametrize(("old", "new"), [("fp32", "o2"), ("o2", "o3"), ("o3", "fp32"), ("fp16", "bf16"), ("bf16", "o2")])
def test_a_checkpoint_goes_on_in_another_precision(make_parts, old, new):
    """The weights taken over are those saved, as closely as the new format holds them; training goes on to the end."""
    modes = PRECISIONS | HALF
    part = make_parts(run="part", precision=modes[old], train={"epochs": 1})
    fit(part)
    saved = newest(part)
    resumed = make_parts(run="resumed", precision=modes[new])
    state = snapshot.restore(resumed, saved)
    half = resumed.precision.dtype if new == "o3" else torch.float32
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor.float(), saved["model"][name].to(half if tensor.is_floating_point() else tensor.dtype).float())
    loop.fit(resumed, state)
    assert state.step == 10
    assert math.isfinite(state.metrics["val/loss"])


def test_the_average_is_what_is_evaluated(make_parts, tmp_path):
    """C19: the recorded accuracy is that of the averaged weights, and so is the network that a checkpoint gives."""
    parts = make_parts(train={"ema_decay": 0.99})
    fit(parts)
    payload = newest(parts)
    assert not torch.equal(payload["ema"]["1.weight"], payload["model"]["1.weight"])
    loaded = network.load_model(payload, trust_code=False)
    losses, count = 0.0, 0
    for batch in parts.data.val.batches():
        with torch.no_grad():
            losses += float(torch.nn.functional.cross_entropy(loaded(batch.images).double(), batch.labels, reduction="sum"))
        count += len(batch.labels)
    assert history(parts, "val/loss")[10] == pytest.approx(losses / count, rel=1e-5)


def test_a_skipped_update_leaves_the_average_alone(make_parts, nan_losses):
    parts = make_parts(train={"ema_decay": 0.5, "max_steps": 4})
    nan_losses(lambda call: call == 3)
    averages = []
    original = parts.average.update

    def update(updates, *, moved):
        original(updates, moved=moved)
        averages.append({name: tensor.clone() for name, tensor in parts.average.model.named_parameters()})

    parts.average.update = update
    fit(parts)
    assert_same(averages[2], averages[1])
    assert not torch.equal(averages[3]["1.weight"], averages[2]["1.weight"])


@pytest.mark.parametrize(("patience", "epochs"), [(1, 3), (2, 6), (9, 7)])
def test_training_ends_early_without_a_better_objective(make_parts, monkeypatch, patience, epochs):
    """The best is epoch 4; two bad evaluations in a row follow epoch 2 only once patience forgives one."""
    scripted_evaluations(monkeypatch, "accuracy", [0.1, 0.5, 0.5, 0.7, 0.6, math.nan, 0.6])
    parts = make_parts(train={"epochs": 7, "early_stop_patience": patience})
    state = fit(parts)
    assert state.epoch == epochs
    assert parts.stopped_early(state) == (epochs < 7)
    assert saved_steps(parts)[-1] == state.step  # the last state is saved, whyever it is the last


def test_patience_and_best_survive_a_resume(make_parts, monkeypatch):
    """E12: the evaluations before the stop still count."""
    scripted_evaluations(monkeypatch, "accuracy", [0.9, 0.5, 0.5, 0.5])
    part = make_parts(run="part", train={"epochs": 2, "early_stop_patience": 3})
    fit(part)
    resumed = make_parts(run="resumed", train={"epochs": 9, "early_stop_patience": 3})
    state = snapshot.restore(resumed, newest(part))
    loop.fit(resumed, state)
    assert (state.epoch, state.best_value, state.best_epoch, state.is_best) == (4, 0.9, 1, False)
    assert not (resumed.run_dir / "checkpoints" / "best.pt").exists()


def test_max_steps_in_the_middle_of_an_epoch_and_then_the_rest(make_parts):
    """The plan's end is evaluated and saved; what follows equals the uninterrupted run."""
    whole = make_parts(run="whole")
    fit(whole)
    part = make_parts(run="part", train={"max_steps": 7})
    state = fit(part)
    assert (state.step, state.epoch, state.epoch_step) == (7, 1, 2)
    assert list(history(part, "val/accuracy")) == [5, 7]
    assert saved_steps(part) == [5, 7]
    resumed = make_parts(run="resumed")
    state = snapshot.restore(resumed, newest(part))
    loop.fit(resumed, state)
    assert_same(weights(resumed), weights(whole))
    assert list(history(resumed, "train/loss")) == [8, 9, 10]


@pytest.mark.parametrize(("subset", "epochs", "left"), [(16, 4, 4), (16, 3, 2), (None, 3, 5), (16, 2, 0)])
def test_epochs_count_though_they_become_shorter(make_parts, subset, epochs, left):
    """Two epochs of five steps, then epochs of two: the plan goes to the last epoch asked for, not to a number of steps."""
    part = make_parts(run="part")
    fit(part)
    resumed = make_parts(run="resumed", train={"epochs": epochs}, data={"subset": subset})
    state = snapshot.restore(resumed, newest(part))
    loop.fit(resumed, state)
    assert (state.epoch, state.step) == (epochs, 10 + left)


def test_a_finished_run_has_nothing_left_to_do(make_parts):
    parts = make_parts()
    fit(parts)
    again = make_parts(run="again")
    state = snapshot.restore(again, newest(parts))
    loop.fit(again, state)
    assert state.step == 10
    assert not (again.run_dir / "checkpoints").exists()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("first_bad", "limit"), [(1, 1), (3, 4), (6, 2)])
def test_losses_that_stay_nan_end_the_run_and_name_the_first(make_parts, nan_losses, precision, first_bad, limit):
    """Exit code 4 in every precision; the weights are those of the step before."""
    settings = PRECISIONS[precision] | {"scaler": {"init_scale": 256.0, "max_consecutive_skips": limit}}
    good = make_parts(run="good", precision=settings, train={"max_steps": first_bad})
    before = []
    good.optimizer.register_step_pre_hook(lambda *args: before.append(weights(good)))
    fit(good)
    parts = make_parts(precision=settings)
    nan_losses(lambda call: call >= first_bad)
    state = TrainState()
    with pytest.raises(NonFiniteError, match=rf"^{limit} updates in a row were skipped .*from step {first_bad} on") as error:
        loop.fit(parts, state)
    assert error.value.exit_code == 4
    assert (state.step, state.updates) == (first_bad + limit - 1, first_bad - 1)
    for name, parameter in parts.model.named_parameters():
        assert torch.isfinite(parameter).all()
        assert torch.equal(parameter, before[-1][name])


def test_nan_images_are_seen_too(make_parts):
    """Poison from the data, not from the loss."""
    parts = make_parts(precision={"name": "fp32", "scaler": {"max_consecutive_skips": 2}})
    change_batches(parts, lambda batch, number: replace(batch, images=batch.images * float("nan")) if number >= 4 else batch)
    with pytest.raises(NonFiniteError, match="from step 4 on"):
        fit(parts)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_fewer_bad_steps_than_the_limit_are_skipped_and_counted(make_parts, nan_losses, precision):
    """A02: three in a row twice, with a limit of four."""
    bad = (2, 3, 4, 6, 7, 8)
    nan_losses(lambda call: call in bad)
    parts = make_parts(precision=PRECISIONS[precision] | {"scaler": {"init_scale": 256.0, "max_consecutive_skips": 4}})
    state = fit(parts)
    assert (state.step, state.updates, int(parts.schedule.updates)) == (10, 4, 4)
    assert list(history(parts, "amp/skipped_updates").values()) == [0, 1, 2, 3, 3, 4, 5, 6, 6, 6]
    assert [step for step, loss in history(parts, "train/loss").items() if not math.isfinite(loss)] == list(bad)
    assert newest(parts)["state"]["updates"] == 4


def test_bad_steps_between_log_points_are_found_at_the_next(make_parts, nan_losses):
    """The decision waits for a read; the step that it names does not."""
    nan_losses(lambda call: call >= 3)
    parts = make_parts(precision={"name": "fp32", "scaler": {"max_consecutive_skips": 2}}, train={"log_every": 4})
    state = TrainState()
    with pytest.raises(NonFiniteError, match=r"^2 updates in a row .*from step 3 on"):
        loop.fit(parts, state)
    assert state.step == 4


def test_the_first_step_after_a_resume_is_counted_if_it_is_bad(make_parts, nan_losses):
    """The count of real updates goes on from the checkpoint's."""
    part = make_parts(run="part", train={"max_steps": 6})
    fit(part)
    resumed = make_parts(precision={"name": "fp32", "scaler": {"max_consecutive_skips": 2}})
    state = snapshot.restore(resumed, newest(part))
    nan_losses(lambda call: True)
    with pytest.raises(NonFiniteError, match=r"^2 updates in a row .*from step 7 on"):
        loop.fit(resumed, state)
    assert (state.step, state.updates) == (8, 6)


@pytest.mark.parametrize("code", [ExitCode.INTERRUPTED, ExitCode.TERMINATED])
@pytest.mark.parametrize("step", [1, 5, 7])
def test_a_signal_ends_with_a_checkpoint_of_that_very_step(make_parts, code, step):
    """D08: also far from a log point and at an epoch's end."""
    parts = stop_after(make_parts, step, code, train={"log_every": 1000}, save={"every_epochs": 9})
    state = TrainState()
    with pytest.raises(Stopped, match=f"after step {step};") as error:
        loop.fit(parts, state)
    assert error.value.exit_code == code
    assert state.step == saved_steps(parts)[-1] == newest(parts)["state"]["step"] == step
    assert_same(newest(parts)["model"], weights(parts))
    assert set(history(parts, "train/loss")) == ({5} if step >= 5 else set())  # the window that was cut is logged after a resume
    assert newest(parts)["state"]["updates"] == step


def test_a_signal_during_the_last_step_does_not_unfinish_the_run(make_parts):
    parts = stop_after(make_parts, 10)
    assert fit(parts).step == 10
    assert saved_steps(parts)[-1] == 10


def test_ranks_of_a_group_decide_at_agreed_steps_only(make_parts):
    """A rank that looked at its own signal whenever it liked would leave the others in a collective."""
    parts = make_parts(stop=lambda: ExitCode.TERMINATED, train={"log_every": 6, "check_every": 3})
    assert all(parts.check_due(step) for step in range(1, 8))
    parts.rank = Rank(rank=1, world_size=2)
    parts.plan_check(0, step_seconds=0.001)
    assert [step for step in range(1, 13) if parts.check_due(step)] == [3, 6, 9, 12]


def test_slow_steps_are_no_reason_to_hear_a_signal_late(make_parts):
    """FAULTS row 4: with the default of 20 steps a step of 6 s would need two minutes, and the grace is 30 s."""
    parts = make_parts(train={"log_every": 20})
    parts.rank = Rank(world_size=2)
    assert parts.check_due(1)
    for step_seconds, expected in ((6.0, [2, 3, 4]), (0.5, [5, 6, 7, 8, 9, 10, 11, 12]), (0.01, [20, 40])):
        parts.plan_check(1, step_seconds=step_seconds)
        due = [step for step in range(2, 41) if parts.check_due(step)]
        assert due[: len(expected)] == expected


@pytest.mark.parametrize(
    ("mode", "name", "values"),
    [
        ("max", "accuracy", [0.5, 0.7, 0.6, 0.7]),
        ("max", "accuracy", [0.5, math.nan, 0.7, 0.6]),
        ("max", "accuracy", [math.nan, 0.1, 0.2, math.nan]),
        ("min", "loss", [3.0, 1.0, 2.0, 1.0]),
        ("min", "loss", [math.nan, 3.0, math.inf, -math.inf]),
        ("min", "loss", [1.0, math.nan, 2.0, 3.0]),
    ],
)
def test_the_best_is_the_first_best_finite_value(make_parts, monkeypatch, mode, name, values):
    """best.pt is that epoch's checkpoint, and the best evaluation is kept."""
    scripted_evaluations(monkeypatch, name, values)
    parts = make_parts(train={"epochs": 4}, objective={"name": f"val/{name}", "mode": mode})
    state = fit(parts)
    finite = np.where(np.isfinite(values), values, np.nan)
    epoch = int(np.nanargmax(finite) if mode == "max" else np.nanargmin(finite)) + 1
    assert (state.best_epoch, state.best_step, state.best_value) == (epoch, 5 * epoch, values[epoch - 1])
    saved = load(parts.run_dir / "checkpoints" / "best.pt")["state"]
    assert (saved["step"], saved["best_value"]) == (5 * epoch, values[epoch - 1])
    assert getattr(parts.best_evaluation, name) == values[epoch - 1]


def test_nothing_but_nan_has_no_best(make_parts, monkeypatch):
    scripted_evaluations(monkeypatch, "loss", [math.nan, math.nan])
    parts = make_parts(objective={"name": "val/loss", "mode": "min"})
    state = fit(parts)
    assert state.best_value is None
    assert not (parts.run_dir / "checkpoints" / "best.pt").exists()
    assert saved_steps(parts) == [5, 10]


def test_the_best_survives_a_resume(make_parts, monkeypatch):
    """A later, worse evaluation of a resumed run must not become the best."""
    scripted_evaluations(monkeypatch, "accuracy", [0.9, 0.5, 0.95])
    first = make_parts(train={"epochs": 1})
    fit(first)
    second = make_parts(train={"epochs": 3})
    state = snapshot.restore(second, newest(first))
    loop.fit(second, state)
    assert (state.best_value, state.best_epoch) == (0.95, 3)
    assert load(second.run_dir / "checkpoints" / "best.pt")["state"]["epoch"] == 3


def test_an_evaluation_with_inf_or_nan_is_never_the_best(make_parts, monkeypatch, caplog):
    """Accuracy is a number all the same: the first class is the largest of NaN."""
    scripted_evaluations(monkeypatch, "loss", [1.0, math.nan, 1.0])
    parts = make_parts(train={"epochs": 3})
    accuracies = iter([0.1, 0.9, 0.5])
    scripted = loop.evaluate
    monkeypatch.setattr(loop, "evaluate", lambda *args, **kwargs: replace(scripted(*args, **kwargs), accuracy=next(accuracies)))
    state = fit(parts)
    assert (state.best_value, state.best_epoch) == (0.5, 3)
    assert caplog.text.count("val/loss is nan: the network's outputs hold inf or NaN") == 1


def test_a_training_metric_can_be_the_objective(make_parts):
    parts = make_parts(train={"epochs": 3}, objective={"name": "train/loss", "mode": "min"})
    state = fit(parts)
    losses = history(parts, "train/loss")  # a point a step, five an epoch
    value, step = min((sum(losses[step] for step in range(end - 4, end + 1)) / 5, end) for end in (5, 10, 15))
    assert (state.best_value, state.best_step) == (pytest.approx(value), step)


@pytest.mark.parametrize(("every", "expected"), [(1, [5, 10, 15, 20, 25]), (2, [10, 20, 25]), (3, [15, 25]), (9, [25])])
def test_evaluations_come_every_so_many_epochs_and_at_the_end(make_parts, every, expected):
    parts = make_parts(train={"epochs": 5, "eval_every": every})
    fit(parts)
    assert list(history(parts, "val/accuracy")) == expected


@pytest.mark.parametrize(("every", "keep", "expected"), [(1, 9, [5, 10, 15, 20, 25]), (2, 9, [10, 20, 25]), (9, 1, [25]), (1, 2, [20, 25])])
def test_checkpoints_come_every_so_many_epochs_and_at_the_end(make_parts, every, keep, expected):
    # No evaluation before the end: a best one would be saved whenever it comes.
    parts = make_parts(train={"epochs": 5, "eval_every": 9}, save={"every_epochs": every, "keep": keep})
    fit(parts)
    assert saved_steps(parts) == expected


@pytest.mark.parametrize(
    ("log_every", "expected"), [(1, list(range(1, 11))), (2, [2, 4, 5, 6, 8, 10]), (3, [3, 5, 6, 9, 10]), (50, [5, 10])]
)
def test_one_point_for_each_name_and_step(make_parts, log_every, expected):
    """Log points fall on multiples of ``log_every`` and on the end of each epoch, once; all names are the contract's."""
    parts = make_parts(train={"log_every": log_every}, precision=FLOAT16)
    fit(parts)
    points, _ = read_points(parts.run_dir / "metrics.jsonl")
    assert set(Counter((point.name, point.step) for point in points).values()) == {1}
    assert {point.name for point in points} == CONTRACT - {"perf/peak_memory_gib"}
    assert list(history(parts, "train/loss")) == expected
    assert list(history(parts, "perf/step_ms")) == [5, 10]


def test_points_cover_every_image_once(make_parts):
    """The mean over the points, weighted by their steps, is the mean over the epoch, whatever ``log_every`` is."""
    each = make_parts(run="each")
    state = fit(each)
    rare = make_parts(run="rare", train={"log_every": 3})
    fit(rare)
    losses = list(history(each, "train/loss").values())
    expected = {3: losses[:3], 5: losses[3:5], 6: losses[5:6], 9: losses[6:9], 10: losses[9:]}
    assert history(rare, "train/loss") == pytest.approx({step: np.mean(part) for step, part in expected.items()}, rel=1e-9)
    assert state.train_images == 80


READS = ("item", "__float__", "__int__", "__bool__", "__index__", "tolist", "cpu", "numpy")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_host_reads_at_log_points_only(make_parts, monkeypatch, precision):
    """G02: 100 steps with ``log_every=20`` read five times, whatever a tensor can be read by."""
    counts = Counter()
    counting = []

    def counted(name, original):
        def read(self, *args, **kwargs):
            if counting:
                counts[name] += 1
            return original(self, *args, **kwargs)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    parts = make_parts(
        data={"size": 400}, train={"batch_size": 4, "log_every": 20, "epochs": 1, "clip_norm": 1.0}, precision=PRECISIONS[precision]
    )

    def begin(batch, number):
        counting.append(number)  # what the feed does before its first batch belongs to the epoch, not to a step
        return batch

    change_batches(parts, begin)
    state = TrainState()
    loop.train_epoch(parts, state, loop.EpochTotals())
    counting.clear()
    assert state.step == 100
    assert counts["tolist"] == 5, counts
    assert sum(counts.values()) <= 5 + 2, counts


def test_time_left_and_the_number_of_the_epoch(make_parts, monkeypatch):
    parts = make_parts()
    parts.planned_steps, parts.first_step = 1000, 100
    monkeypatch.setattr(type(parts), "seconds_since_start", lambda self: 50.0)
    assert eta(parts, TrainState(step=200)) == "06:40"
    parts.planned_steps = 20_000
    assert eta(parts, TrainState(step=200)) == "2:45:00"
    assert [current_epoch(TrainState(epoch=2, epoch_step=step)) for step in (0, 1)] == [2, 3]
