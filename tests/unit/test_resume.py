"""Resuming with another config, and ends that must be told truly: each was wrong once."""

import io
import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from rich.console import Console
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau

from src import build, work
from src.checkpoint.load import load
from src.config.runfile import to_config
from src.config.schema import AdamWConfig, Mode, PlateauConfig
from src.engine import loop, snapshot
from src.launch.outcome import Outcome
from src.launch.signals import StopSignals
from src.launch.summary import config_lines, override
from src.optim import Schedule, build_optimizer
from src.runtime.rank import Rank

BASE = {
    "device": "cpu",
    "tracking": {"name": "none"},
    "schedule": {"name": "constant"},
    "precision": {"name": "fp32"},
    "optim": {"name": "adamw", "lr": 0.01},
    "data": {"name": "synthetic", "size": 40, "val_size": 20, "pixels": 8, "channels": 1, "classes": 3},
    "train": {"epochs": 2, "batch_size": 8, "log_every": 1},
}


def conf(**changes):
    return to_config(BASE | {key: BASE.get(key, {}) | value if isinstance(value, dict) else value for key, value in changes.items()})


def parts_of(d, **s):
    d.mkdir(exist_ok=True)
    return build.train_parts(conf(**s), run_dir=d, rank=Rank(), stop_requested=lambda: 0)


def run(d, **s):
    return work.run_rank(conf(**s), run_dir=d, rank=Rank(), signals=StopSignals())


def test_resume_on_other_data_is_refused(tmp_path):
    run(tmp_path / "a", train={"epochs": 1})
    out = run(
        tmp_path / "b",
        data={"name": "synthetic", "size": 40, "val_size": 20, "pixels": 8, "channels": 1, "classes": 3, "seed": 5},
        resume=str(tmp_path / "a/checkpoints/step-00000005.pt"),
    )
    assert out.exit_code == 5, (out.status, out.result["steps"])


def test_resume_with_other_classes_is_one_clear_error(tmp_path):
    run(tmp_path / "a", train={"epochs": 1})
    out = run(
        tmp_path / "b",
        data={"name": "synthetic", "size": 40, "val_size": 20, "pixels": 8, "channels": 1, "classes": 4},
        resume=str(tmp_path / "a/checkpoints/step-00000005.pt"),
    )
    assert out.exit_code == 5, out.reason


def test_the_best_is_saved_between_regular_checkpoints(tmp_path, monkeypatch):
    o = loop.evaluate
    vals = iter([0.9, 0.5, 0.4, 0.3])
    monkeypatch.setattr(loop, "evaluate", lambda *a, **k: replace(o(*a, **k), accuracy=next(vals)))
    out = run(tmp_path, train={"epochs": 4}, save={"every_epochs": 4})
    assert out.result["best"]["step"] == 5
    assert load(tmp_path / "checkpoints/best.pt")["state"]["step"] == 5


@pytest.mark.parametrize(("key", "value"), [("weight_decay", 0.5), ("betas", [0.5, 0.6])])
def test_drift_of_optimizer_settings_takes_effect(tmp_path, key, value):
    run(tmp_path / "a", train={"epochs": 1})
    parts = parts_of(tmp_path / "b", optim={"name": "adamw", key: value})
    snapshot.restore(parts, load(tmp_path / "a/checkpoints/step-00000005.pt"))
    used = parts.optimizer.param_groups[0][key]
    assert (list(used) if isinstance(used, tuple) else used) == value


@pytest.mark.parametrize(("a", "b"), [({"fused": False}, {}), ({}, {"fused": False})])
def test_drift_of_optimizer_layout(tmp_path, a, b):
    run(tmp_path / "a", train={"epochs": 1}, optim=a)
    out = run(tmp_path / "b", optim=b, resume=str(tmp_path / "a/checkpoints/step-00000005.pt"))
    assert out.exit_code in (0, 5), out.reason


@pytest.mark.parametrize(("stop", "batch"), [(2, 20), (3, 20), (4, 16)])
def test_drift_of_batch_size_in_mid_epoch(tmp_path, stop, batch):
    run(tmp_path / "a", train={"max_steps": stop})
    out = run(tmp_path / "b", train={"epochs": 9, "batch_size": batch}, resume=str(tmp_path / f"a/checkpoints/step-{stop:08d}.pt"))
    assert out.exit_code == 0, out.reason


def test_skips_are_counted_truly_when_the_run_ends_off_a_log_point(tmp_path, monkeypatch):
    o = F.cross_entropy
    n = [0]

    def ce(*a, **k):
        loss = o(*a, **k)
        if "reduction" in k:
            return loss
        n[0] += 1
        return loss * math.nan if n[0] > 2 else loss

    monkeypatch.setattr(F, "cross_entropy", ce)
    out = run(tmp_path, train={"log_every": 20, "check_every": 1}, precision={"name": "fp32", "scaler": {"max_consecutive_skips": 2}})
    assert out.exit_code == 4
    assert [out.result[k] for k in ("steps", "updates", "skipped_updates")] == [4, 2, 2]


def test_a_crash_between_log_points_counts_no_skips(tmp_path, monkeypatch):
    o = F.cross_entropy
    n = [0]

    def ce(*a, **k):
        n[0] += 1
        if n[0] == 4:
            raise RuntimeError("boom")
        return o(*a, **k)

    monkeypatch.setattr(F, "cross_entropy", ce)
    out = run(tmp_path, train={"log_every": 20})
    assert out.result["skipped_updates"] == 0, [out.result[k] for k in ("steps", "updates", "skipped_updates")]


def test_plateau_ignores_nan():
    m = nn.Linear(1, 1)
    o = build_optimizer(AdamWConfig(lr=0.1), m)
    s = Schedule(PlateauConfig(patience=1, factor=0.5), o, optim=AdamWConfig(lr=0.1), total_updates=10, updates_per_epoch=5)
    ref = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    rs = ReduceLROnPlateau(ref, mode="min", patience=1, factor=0.5, threshold=0)
    for v in [math.nan, 5.0, 4.0, 3.0, 2.0, 1.0]:
        s.on_evaluation(v, Mode.min)
        rs.step(v)
    assert float(s._table[0]) == pytest.approx(ref.param_groups[0]["lr"])


@pytest.mark.parametrize("path", ["/é/x", "/日本/x", "/a\\b/x", "/${HOME}/x"])
def test_a_printed_path_can_be_typed_again(path):
    (w,) = shlex.split(override("checkpoint", Path(path)))
    v = OverridesParser.create().parse_overrides([w])[0].value()
    assert OmegaConf.create({"x": str(v)}).x == path


@pytest.mark.parametrize("v", ["/x/[old]/y", "[/b]"])
def test_the_config_lines_shows_values_as_they_are(v):
    c = Console(file=io.StringIO(), width=200)
    c.print(config_lines({"a": v}))
    assert v in c.file.getvalue()


@pytest.mark.parametrize("allocate", [lambda: torch.empty(2**55), lambda: bytearray(2**62)])
def test_no_memory_on_a_cpu_is_exit_code_8(allocate):
    outcome = Outcome()
    with pytest.raises((RuntimeError, MemoryError)) as error:
        allocate()
    outcome.blame(error.value)
    assert outcome.exit_code == 8


def test_another_batch_size_goes_on_at_its_place_of_the_schedule(tmp_path):
    """Half of the epochs are done, so half of the cosine is, whatever the number of updates."""
    cosine = {"schedule": {"name": "cosine"}}
    run(tmp_path / "a", train={"epochs": 4, "max_steps": 10}, **cosine)
    parts = parts_of(tmp_path / "b", train={"epochs": 4, "batch_size": 20}, **cosine)
    state = snapshot.restore(parts, load(tmp_path / "a/checkpoints/step-00000010.pt"))
    assert (state.epoch, parts.planned_steps) == (2, 14)
    rates = []
    parts.optimizer.register_step_post_hook(lambda *_: rates.append(float(parts.schedule.lr)))
    loop.fit(parts, state)
    assert rates == pytest.approx([0.01 * (1 + math.cos(math.pi * place / 8)) / 2 for place in (4, 5, 6, 7)])


def test_another_objective_begins_anew(tmp_path):
    run(tmp_path / "a", train={"max_steps": 5})
    out = run(tmp_path / "b", objective={"name": "train/loss", "mode": "min"}, resume=str(tmp_path / "a/checkpoints/step-00000005.pt"))
    losses = [json.loads(line) for line in (tmp_path / "b/metrics.jsonl").read_text().splitlines()]
    epoch = [point["value"] for point in losses if point["name"] == "train/loss"]
    assert out.result["best"] == {"step": 10, "epoch": 2, "value": pytest.approx(sum(epoch) / 5)}


def test_the_kernel_of_the_optimizer_may_change(tmp_path):
    """torch decides by the settings where the count of steps goes."""
    run(tmp_path / "a", train={"max_steps": 5}, optim={"name": "adamw", "lr": 0.01, "fused": False})
    parts = parts_of(tmp_path / "b")
    snapshot.restore(parts, load(tmp_path / "a/checkpoints/step-00000005.pt"))
    assert all(group["fused"] for group in parts.optimizer.param_groups)
    settings = snapshot.with_own_settings({"param_groups": [{"fused": False, "params": [0]}] * 2, "state": {}}, parts.optimizer)
    assert [(group["fused"], group["params"]) for group in settings["param_groups"]] == [(True, [0])] * 2
