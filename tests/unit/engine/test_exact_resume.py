"""Runs drawn at random, stopped or broken off at random steps and gone on with in fresh parts: nothing may differ."""

import contextlib
import random
from typing import Any

import numpy as np
import pytest
import torch

from src.checkpoint import find
from src.checkpoint.load import load
from src.engine import loop, snapshot
from src.engine.state import TrainState
from src.errors import ExitCode, Stopped
from src.tracking.journal import read_points

from .conftest import assert_same, change_batches

NUM_DRAWS = 24


class PowerCutError(Exception):
    """The process is gone: only what was saved before counts."""


def draw(chance: random.Random) -> dict[str, dict[str, Any]]:
    """Settings of a run with three epochs of five steps."""
    fp16 = {"dtype": "float16", "scaler": {"init_scale": chance.choice([256.0, 2.0**24]), "growth_interval": 2}}  # 2 ** 24: inf at first
    augment = {
        name: value for name, value in (("flip", True), ("crop_padding", 1), ("mixup", 0.3), ("cutmix", 0.5)) if chance.random() < 0.4
    }
    warmup = {"warmup_steps": chance.choice([0, 2, 7])}
    return {
        "optim": chance.choice([{"name": "adamw", "lr": 0.01}, {"name": "adamw", "fused": False}, {"name": "sgd", "lr": 0.5}]),
        "schedule": chance.choice(
            [
                {"name": "cosine", **warmup},
                {"name": "onecycle"},
                {"name": "plateau", "patience": 0, **warmup},
                {"name": "multistep", "milestones": [1, 2], **warmup},
            ]
        ),
        "precision": chance.choice(
            [
                {"name": "fp32"},
                {"name": "amp", "dtype": "bfloat16"},
                {"name": "amp", **fp16},
                {"name": "o1", **fp16},
                {"name": "o2", **fp16},
            ]
        ),
        "train": {
            "epochs": 3,
            "accumulate": chance.choice([1, 2]),
            "clip_norm": chance.choice([None, 0.5]),
            "ema_decay": chance.choice([None, 0.9]),
            "label_smoothing": chance.choice([0.0, 0.1]),
            "early_stop_patience": chance.choice([None, 1, 2]),
            "log_every": chance.choice([1, 2, 3, 4, 20]),
            "check_every": chance.choice([None, 1, 3]),
            "eval_every": chance.choice([1, 2]),
        },
        "data": {"augment": augment},
        "save": {
            "every_steps": chance.choice([1, 2, 3]),
            "every_epochs": chance.choice([1, 2]),
            "background": chance.random() < 0.5,
            "keep": 99,
        },
    }


def go_on(make_parts, settings, *, run, source, chance):
    """The run from ``source`` (None: the start), ended by a signal or a power cut in one of its next micro-batches; its parts."""
    at, cut = chance.randint(1, 12), chance.random() < 0.5
    told = []
    parts = make_parts(run=run, stop=lambda: ExitCode.TERMINATED if told else 0, **settings)

    def end(batch, number):
        if number == at and cut:
            raise PowerCutError
        if number == at:
            told.append(number)
        return batch

    change_batches(parts, end)
    state = TrainState() if source is None else snapshot.restore(parts, load(source))
    with contextlib.suppress(Stopped, PowerCutError):
        loop.fit(parts, state)
    parts.writer.close()
    return parts


def scramble(chance):
    """A new process has other random states."""
    torch.manual_seed(chance.randrange(2**32))
    random.seed(chance.randrange(2**32))
    np.random.seed(chance.randrange(2**32))


def points(parts):
    """(step, name) -> value of every recorded metric but times, as text so that NaN equals NaN."""
    found, _ = read_points(parts.run_dir / "metrics.jsonl")
    return {(point.step, point.name): repr(point.value) for point in found if not point.name.startswith("perf/")}


def last_state(payload):
    """Position and memory, without times and what counts the work of one process."""
    state = {name: value for name, value in payload["state"].items() if name not in ("train_seconds", "train_images")}
    return state | {"metrics": {name: repr(value) for name, value in state["metrics"].items() if not name.startswith("perf/")}}


@pytest.mark.parametrize("number", range(NUM_DRAWS))
def test_any_run_ended_anywhere_and_gone_on_with_is_the_run_that_went_straight_on(make_parts, tmp_path, number):
    chance = random.Random(number)
    settings = draw(chance)
    whole = make_parts(run="whole", **settings)
    loop.fit(whole, TrainState())
    whole.writer.close()

    seen, source = {}, None
    for part in range(3):
        parts = go_on(make_parts, settings, run=f"part {part}", source=source, chance=chance)
        seen |= points(parts)
        source = find.newest_valid(parts.run_dir / "checkpoints") or source
        scramble(chance)
    final = make_parts(run="final", **settings)
    state = TrainState() if source is None else snapshot.restore(final, load(source))
    assert final.first_step == state.step
    loop.fit(final, state)
    final.writer.close()
    seen |= points(final)

    assert seen == points(whole)
    one, other = (load(find.newest_valid(tmp_path / run / "checkpoints") or source) for run in ("final", "whole"))
    for name in ("model", "ema", "optimizer", "schedule", "precision", "best_evaluation", "ranks"):
        assert_same(one[name], other[name])
    assert last_state(one) == last_state(other)
