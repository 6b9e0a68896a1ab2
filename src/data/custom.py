"""A data set of the user's own: what ``data.factory`` returns, checked."""

import logging
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from src.config.schema import CustomDataConfig
from src.data.custom_images import CustomImages
from src.data.images import FIXED
from src.data.item import own_generators, read_item, seed_generators, to_pixels
from src.data.source import Source, SplitSource
from src.errors import ConfigError, DataError
from src.factory import call_factory, import_factory

log = logging.getLogger(__name__)


def custom(config: CustomDataConfig, class_names: list[str] | None) -> Source:
    """The datasets that ``data.factory`` returns: one, or (train, val) or (train, val, test), where val may be None.

    Raises ConfigError for a factory that can't be called so or returns something else, DataError for unusable items.
    """
    factory = str(config.factory)
    function = import_factory(config.factory, key="data.factory")
    datasets = _by_split(call_factory(function, offered={}, kwargs=config.kwargs, key="data.kwargs"), factory=factory)
    labels = {split: _labels(dataset, split=split, factory=factory) for split, dataset in datasets.items()}
    names = _own_class_names(datasets["train"]) or class_names or [str(number) for number in range(int(labels["train"].max()) + 1)]
    for split, numbers in labels.items():
        wrong = numbers[(numbers < 0) | (numbers >= len(names))]
        if len(wrong):
            raise DataError(
                f"the {split} dataset of data.factory={factory} has the label {int(wrong[0])}, but its {len(names)} classes"
                f" are numbered from 0 to {len(names) - 1}"
            )
    channels = _channels(datasets["train"], factory=factory)
    made = {split: CustomImages(factory, datasets[split], range(len(labels[split])), labels[split], channels) for split in datasets}
    splits = {split: partial(made.__getitem__, split) for split in made}
    return SplitSource(names, factory, splits, val_split="val" if "val" in made else None)


def _by_split(result: Any, *, factory: str) -> dict[str, Any]:
    parts = result if isinstance(result, tuple) else (result, None)
    if len(parts) not in (2, 3) or parts[0] is None:
        raise ConfigError(f"data.factory={factory} must return a dataset, (train, val) or (train, val, test); val may be None")
    found = {split: dataset for split, dataset in zip(("train", "val", "test"), parts, strict=False) if dataset is not None}
    for split, dataset in found.items():
        # torch's Dataset has a __getitem__ that only raises, so that iterable ones have it too.
        if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ConfigError(
                f"data.factory={factory} gave a {type(dataset).__name__} for {split}, which has no length and no items by number; return"
                " a map-style dataset (__len__ and __getitem__): equal steps on all ranks, a new order each epoch and resuming need them"
            )
        if len(dataset) == 0:
            raise DataError(f"the {split} dataset of data.factory={factory} is empty")
    return found


def _labels(dataset: Any, *, split: str, factory: str) -> Tensor:
    """int64 [N], from the dataset's ``.targets`` or else by reading every item once."""
    targets = _targets(dataset)
    if targets is None:
        log.info("the %s dataset of data.factory=%s has no .targets: reading its %d items for their labels", split, factory, len(dataset))
        with own_generators():
            seed_generators((*FIXED, 0))
            return torch.tensor([read_item(dataset, row, factory=factory)[1] for row in range(len(dataset))])
    if targets.shape != (len(dataset),) or targets.dtype.kind not in "iu":
        raise DataError(
            f"the .targets of the {split} dataset of data.factory={factory} must be {len(dataset)} class numbers, one for each item,"
            f" but are {targets.dtype} of the shape {list(targets.shape)}; correct or drop them"
        )
    return torch.from_numpy(targets.astype(np.int64))


def _targets(dataset: Any) -> np.ndarray | None:
    if isinstance(dataset, Subset):
        targets = _targets(dataset.dataset)
        return None if targets is None else targets[np.asarray(dataset.indices)]
    targets = getattr(dataset, "targets", None)
    return None if targets is None else np.asarray(targets)


def _own_class_names(dataset: Any) -> list[str] | None:
    if isinstance(dataset, Subset):
        return _own_class_names(dataset.dataset)
    classes = getattr(dataset, "classes", None)
    return None if classes is None else [str(name) for name in classes]


def _channels(dataset: Any, *, factory: str) -> int:
    with own_generators():
        seed_generators((*FIXED, 0))
        image, _ = read_item(dataset, 0, factory=factory)
        return int(to_pixels(image, where=f"item 0 of data.factory={factory}").shape[2])
