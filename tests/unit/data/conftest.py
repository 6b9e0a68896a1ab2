"""Small image folders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from src.config.schema import DataConfig, Split
from src.data import Data, EvalFeed, InputFormat, Placement, build_eval

MakeFolder = Callable[..., Path]


def placement(rank: int = 0, world_size: int = 1, *, channels_last: bool = False) -> Placement:
    """A rank on the CPU."""
    return Placement(rank, world_size, world_size, torch.device("cpu"), channels_last)


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Write random images: ``make_folder({"train/cat": 3, ...}, side=8)`` gives the root; images differ."""

    def make(counts: dict[str, int], *, side: int = 8, suffix: str = ".png") -> Path:
        generator = np.random.default_rng(0)
        for folder, count in counts.items():
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / folder / f"{number:03}{suffix}")
        return tmp_path

    return make


def evaluation(config: DataConfig, data: Data, *, split: Split = Split.val, batch_size: int = 2) -> EvalFeed:
    """A split as ``src.evaluate`` reads it for a network that was trained on ``data``."""
    return build_eval(
        config,
        split=split,
        batch_size=batch_size,
        accumulate=1,
        placement=placement(),
        form=InputFormat(data.channels, data.image_size, data.mean, data.std),
        pixel_size=data.pixel_size,
        class_names=data.class_names,
    )
