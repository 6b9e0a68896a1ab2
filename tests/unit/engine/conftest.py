"""Small runs in this process: a net with batch norm and dropout on 8x8 images, five steps an epoch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src import build
from src.config.checks import check
from src.config.runfile import to_config
from src.data.base import Batch, TrainFeed
from src.engine.state import Parts
from src.models import MODELS, ModelNeeds, ModelSpec
from src.runtime.rank import Rank
from src.tracking.journal import read_points

SMALL: dict[str, Any] = {
    "device": "cpu",
    "tracking": {"name": "none"},
    "schedule": {"name": "constant"},
    "precision": {"name": "fp32"},
    "data": {"name": "synthetic", "size": 40, "val_size": 20, "pixels": 8, "channels": 1, "classes": 3},
    "train": {"epochs": 2, "batch_size": 8, "log_every": 1},
    "optim": {"name": "adamw", "lr": 0.01},
    "save": {"background": False},  # in the background a checkpoint may be left out when the next one comes too soon
}
MakeParts = Callable[..., Parts]


def build_net(num_classes: int, channels: int, image_size: int) -> nn.Module:
    """Its state is more than weights (running statistics), and training it draws random numbers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * 64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, num_classes)
    )


@pytest.fixture
def make_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeParts:
    """Build the parts of a run: ``make_parts(run="name", stop=function, train={"epochs": 3}, ...)``."""
    monkeypatch.setitem(MODELS, "digits_cnn", ModelSpec(build_net, ModelNeeds(None, min_image_size=8, image_size=8)))

    def make(*, run: str = "run", stop: Callable[[], int] = lambda: 0, **sections: dict[str, Any]) -> Parts:
        wanted = SMALL | {name: SMALL.get(name, {}) | section for name, section in sections.items()}
        config = to_config(wanted)
        check(config, cuda_devices=0)
        (tmp_path / run).mkdir(exist_ok=True)
        return build.train_parts(config, run_dir=tmp_path / run, rank=Rank(), stop_requested=stop)

    return make


class ChangedFeed:
    """A training feed whose batches pass through ``change(batch, number)``; ``number`` counts batches from 1."""

    def __init__(self, feed: TrainFeed, change: Callable[[Batch, int], Batch]) -> None:
        self._feed = feed
        self._change = change
        self.served = 0
        self.steps_per_epoch = feed.steps_per_epoch
        self.images_per_epoch = feed.images_per_epoch

    def epoch(self, epoch: int, *, start_step: int = 0) -> Iterator[Batch]:
        """The changed batches."""
        for batch in self._feed.epoch(epoch, start_step=start_step):
            self.served += 1
            yield self._change(batch, self.served)


def change_batches(parts: Parts, change: Callable[[Batch, int], Batch]) -> ChangedFeed:
    """Put a ``ChangedFeed`` in place of the run's training feed."""
    feed = ChangedFeed(parts.data.train, change)
    parts.data = replace(parts.data, train=feed)
    return feed


@pytest.fixture
def nan_losses(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the training loss of these calls NaN, counted from 1 (evaluation calls with ``reduction`` and is left alone)."""
    original = F.cross_entropy

    def poison(which: Callable[[int], bool], value: float = float("nan")) -> None:
        calls = 0

        def cross_entropy(logits: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
            nonlocal calls
            loss = original(logits, labels, **kwargs)
            if "reduction" in kwargs:
                return loss
            calls += 1
            return loss * value if which(calls) else loss

        monkeypatch.setattr(F, "cross_entropy", cross_entropy)

    return poison


def history(parts: Parts, name: str) -> dict[int, float]:
    """Step -> value of a metric in the run's journal."""
    points, _ = read_points(parts.run_dir / "metrics.jsonl")
    return {point.step: point.value for point in points if point.name == name}


def weights(parts: Parts) -> dict[str, Tensor]:
    """A copy of the model's state."""
    return {name: tensor.detach().clone() for name, tensor in parts.model.state_dict().items()}


def assert_same(one: Any, other: Any) -> None:
    """Nested dicts, lists and tensors are equal bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other
