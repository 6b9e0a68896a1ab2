"""From the configuration to feeds: which images, how large, decoded where."""

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import Tensor

from src.config.schema import DataConfig, Loader, Split
from src.data.augment import send
from src.data.base import Data, EvalFeed, InputFormat, InputNeeds, Placement
from src.data.broken import readable
from src.data.choose import data_digest, evaluation_images, training_images, validation_source
from src.data.decoder import decode_all, resolve_workers
from src.data.feed import OrderedFeed, ShuffledFeed, Stock, Store
from src.data.images import FileImages, Images, spread
from src.data.preprocess import Preprocess, pixel_statistics
from src.data.resident import ResidentStore
from src.data.sampler import Plan, eval_batch_size
from src.data.sources import load_source
from src.data.workers import WorkersStore
from src.errors import ConfigError

_RESIDENT_BYTES = 4 * 2**30
_STATISTICS_IMAGES = 2000


def build_data(config: DataConfig, *, batch_size: int, accumulate: int, seed: int, placement: Placement, needs: InputNeeds) -> Data:
    """Training and validation feeds of one rank. ``batch_size`` is global; ``seed`` that of order and augmentation.

    Raises DataError for images, labels or splits that are missing or broken, ConfigError for options that don't fit them.
    """
    source, broken = readable(load_source(config), config, splits=[Split.train, Split.val], placement=placement)
    train, val = training_images(source, config)
    plan = Plan(len(train.labels), batch_size=batch_size, accumulate=accumulate, world_size=placement.world_size)
    image_size = _image_size(config, train, needs)
    channels = _channels(train, needs)
    size = train.stored_size(image_size)
    reading = _reading(config, [train, val], size=size, placement=placement)
    train_store, val_store = (_store(images, size=size, reading=reading, placement=placement) for images in (train, val))
    mean, std = _mean_and_std(config, train, train_store, channels=channels, size=size)
    preprocess = Preprocess(InputFormat(channels, image_size, mean, std), placement=placement)
    train_stock, val_stock = (
        Stock(store, _kept(images, size), send(images.labels, placement.device), preprocess)
        for images, store in ((train, train_store), (val, val_store))
    )
    eval_size = eval_batch_size(batch_size, accumulate=accumulate)
    return Data(
        name=config.name,
        origin=source.origin,
        train=ShuffledFeed(train_stock, plan=plan, augment=config.augment, seed=seed, placement=placement),
        val=OrderedFeed(val_stock, batch_size=eval_size, placement=placement, broken_images=broken),
        class_names=source.class_names,
        channels=channels,
        image_size=image_size,
        mean=mean,
        std=std,
        pixel_channels=train.channels,
        pixel_size=size,
        digest=data_digest(source),
        train_size=len(train.labels),
        val_size=len(val.labels),
        val_source=validation_source(source),
        effective={
            "loader": reading.loader.value,
            "num_workers": reading.num_workers,
            "image_size": image_size,
            "stored_size": size,
            "val_source": validation_source(source),
            "broken_images": broken,
        },
    )


def build_eval(
    config: DataConfig,
    *,
    split: Split,
    batch_size: int,
    accumulate: int,
    placement: Placement,
    form: InputFormat,
    pixel_size: int,
    class_names: list[str],
) -> EvalFeed:
    """One split, unaugmented, for a model trained with ``form``, ``class_names`` and images of ``pixel_size``; decodes nothing else.

    Equal ``batch_size`` and ``accumulate`` give the batches of the training run's own validation. Raises like ``build_data``.
    """
    source = load_source(config, class_names=class_names)
    if source.class_names != class_names:
        raise ConfigError(
            f"data.name={config.name} has the classes {', '.join(source.class_names[:10])} but the model was trained on"
            f" {', '.join(class_names[:10])}; evaluate it on data with its own classes"
        )
    source, broken = readable(source, config, splits=[split], placement=placement)
    images = evaluation_images(source, config, split)
    _channels(images, InputNeeds(form.channels, min_image_size=1, default_image_size=form.image_size))
    reading = _reading(config, [images], size=pixel_size, placement=placement)
    store = _store(images, size=pixel_size, reading=reading, placement=placement)
    preprocess = Preprocess(form, placement=placement)
    stock = Stock(store, _kept(images, pixel_size), send(images.labels, placement.device), preprocess)
    eval_size = eval_batch_size(batch_size, accumulate=accumulate)
    return OrderedFeed(stock, batch_size=eval_size, placement=placement, broken_images=broken)


def split_files(config: DataConfig, *, split: Split, class_names: list[str]) -> list[Path]:
    """The image files of a split of a folder. Raises like ``build_data``."""
    images = evaluation_images(load_source(config, class_names=class_names), config, split)
    assert isinstance(images, FileImages), "checked with the configuration"
    return [images.root / name for name in images.names]


def example_pixels(config: DataConfig, *, split: Split, count: int, size: int, class_names: list[str]) -> Tensor:
    """uint8 [at most count, C, size, size]: some images of a split, spread over it, as the network's preprocessing gets them.

    Raises like ``build_data``.
    """
    images = evaluation_images(load_source(config, class_names=class_names), config, split)
    return images.decode(spread(len(images.labels), count), size=size)


@dataclass(frozen=True)
class _Reading:
    """How images are read: the loader (never auto) and its processes per rank."""

    loader: Loader
    num_workers: int


def _image_size(config: DataConfig, train: Images, needs: InputNeeds) -> int:
    if config.image_size == "auto":
        own = train.common_size
        return own if own is not None and own >= needs.min_image_size else needs.default_image_size
    size = int(config.image_size)
    if size < needs.min_image_size:
        raise ConfigError(
            f"data.image_size={size} is less than the {needs.min_image_size} pixels that the model needs;"
            f" use data.image_size=auto or at least {needs.min_image_size}"
        )
    return size


def _channels(images: Images, needs: InputNeeds) -> int:
    """Channels of the network's input; grey images serve any network, colour images only one that takes as many channels."""
    if needs.channels is None or needs.channels == images.channels:
        return images.channels
    if images.channels == 1:
        return needs.channels
    raise ConfigError(f"the model takes {needs.channels} channels but the images have {images.channels}; choose another model or data set")


def _reading(config: DataConfig, splits: list[Images], *, size: int, placement: Placement) -> _Reading:
    """``loader=auto`` keeps images resident if they stay the same, each split has one size and all together fit."""
    in_memory = all(images.in_memory for images in splits)
    num_workers = resolve_workers(config.num_workers, in_memory=in_memory, local_world_size=placement.local_world_size)
    if config.loader is not Loader.auto:
        return _Reading(config.loader, num_workers)
    if not all(images.fixed for images in splits):
        return _Reading(Loader.workers, num_workers)
    needed = sum(len(images.labels) * images.channels * _kept(images, size) ** 2 for images in splits)
    room = _RESIDENT_BYTES
    if placement.device.type == "cpu":
        room = min(room, psutil.virtual_memory().available // (4 * placement.local_world_size))
    one_size = all(images.common_size is not None for images in splits)
    return _Reading(Loader.resident if one_size and needed <= room else Loader.workers, num_workers)


def _kept(images: Images, size: int) -> int:
    """The side that images keep until they are on the device: ``size``, that of the training images, unless they are in memory anyway.

    One size for every split and for predictions, since where an image is made smaller decides about its pixels.
    """
    return images.stored_size(size) if images.in_memory else size


def _store(images: Images, *, size: int, reading: _Reading, placement: Placement) -> Store:
    size = _kept(images, size)
    if reading.loader is Loader.resident:
        return ResidentStore(send(decode_all(images, size=size, num_workers=reading.num_workers), placement.device))
    return WorkersStore(images, size=size, num_workers=reading.num_workers, device=placement.device)


def _mean_and_std(config: DataConfig, images: Images, store: Store, *, channels: int, size: int) -> tuple[list[float], list[float]]:
    """As given, or measured over all resident images, else over a spread sample; one value serves every channel."""
    mean, std = config.mean, config.std
    if mean is None or std is None:
        measured_mean, measured_std = pixel_statistics(_sample(images, store, size=size))
        mean, std = mean or measured_mean, std or measured_std
    for key, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels):
            raise ConfigError(f"data.{key}={list(values)} has {len(values)} values for {channels} channels; give 1 or {channels}, or null")
    if min(std) <= 0:
        raise ConfigError(f"data.std={list(std)} must be above 0 in every channel; give null to measure it")
    return list(mean) * (channels // len(mean)), list(std) * (channels // len(std))


def _sample(images: Images, store: Store, *, size: int) -> Tensor:
    if isinstance(store, ResidentStore):
        return store.pixels
    rows = torch.linspace(0, len(images.labels) - 1, min(len(images.labels), _STATISTICS_IMAGES)).long().tolist()
    return images.decode(rows, size=_kept(images, size))
