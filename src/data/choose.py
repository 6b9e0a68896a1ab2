"""Which images a run sees: the splits, the held-out part and the subset."""

import hashlib

from src.config.schema import DataConfig, Split
from src.data.images import Images
from src.data.source import Source
from src.data.split import balanced_subset, stratified_split


def training_images(source: Source, config: DataConfig) -> tuple[Images, Images]:
    """Training and validation images. Raises DataError if there are none."""
    if source.val_split is None:
        train, val = _held_out(source, config)
    else:
        train, val = source.images("train"), source.images(source.val_split)
    return _subset(train, config), _subset(val, config)


def evaluation_images(source: Source, config: DataConfig, split: Split) -> Images:
    """The images of one split as training saw them; a test split is never cut down."""
    if split is Split.test:
        return source.images("test")
    if source.val_split is None:
        train, val = _held_out(source, config)
        return _subset(train if split is Split.train else val, config)
    return _subset(source.images("train" if split is Split.train else source.val_split), config)


def data_digest(source: Source) -> str:
    """SHA-256 over the training and validation images that the data set has, before any choice among them."""
    digest = hashlib.sha256("\0".join(source.class_names).encode("utf-8", "surrogateescape"))
    for split in ("train", source.val_split):
        if split is not None:
            digest.update(source.images(split).fingerprint())
    return digest.hexdigest()


def validation_source(source: Source) -> str:
    """Where validation images come from, in words."""
    return source.val_split or "held out"


def _held_out(source: Source, config: DataConfig) -> tuple[Images, Images]:
    images = source.images("train")
    kept, held_out = stratified_split(images.labels, fraction=config.val_fraction, seed=config.split_seed)
    return images.select(kept), images.select(held_out)


def _subset(images: Images, config: DataConfig) -> Images:
    if config.subset is None or config.subset >= len(images.labels):
        return images
    return images.select(balanced_subset(images.labels, size=config.subset, seed=config.split_seed))
