"""Leaving out image files that can't be read, found before anything is planned: the same for any number of ranks."""

import logging
from dataclasses import dataclass
from functools import partial

from src.config.schema import CustomDataConfig, DataConfig, Split
from src.data.base import Placement
from src.data.decode import why_unreadable
from src.data.decoder import Chunk, Decoder, chunked, resolve_workers, useful_workers
from src.data.images import FileImages, Images
from src.data.source import Source
from src.errors import ConfigError, DataError

log = logging.getLogger(__name__)

_CHUNK = 16
_SHOWN = 5


@dataclass(frozen=True)
class _Readable:
    """A source without the files that can't be read."""

    source: Source
    read: dict[str, Images]

    @property
    def class_names(self) -> list[str]:
        return self.source.class_names

    @property
    def origin(self) -> str:
        return self.source.origin

    @property
    def val_split(self) -> str | None:
        return self.source.val_split

    def images(self, split: str) -> Images:
        return self.read[split] if split in self.read else self.source.images(split)


def readable(source: Source, config: DataConfig, *, splits: list[Split], placement: Placement) -> tuple[Source, int]:
    """The source without at most ``data.skip_broken`` unreadable files of these splits, and their number; each is named in a warning.

    Every rank reads every file once, so that all agree with no message between them. With 0 nothing is read ahead.

    Raises:
        DataError: more files are broken, or none is left of a training class.
        ConfigError: the images are those of a data set of the user's own, which are no files.
    """
    if config.skip_broken == 0:
        return source, 0
    if isinstance(config, CustomDataConfig):
        raise ConfigError(
            f"data.skip_broken={config.skip_broken} can only leave out files, which data=image_folder reads; a data set of your own"
            " must leave out broken images itself: use data.skip_broken=0"
        )
    num_workers = resolve_workers(config.num_workers, in_memory=False, local_world_size=placement.local_world_size)
    kept: dict[str, Images] = {}
    broken: list[str] = []
    for name in {_own_split(source, split): None for split in splits}:
        images = source.images(name)
        if isinstance(images, FileImages):
            found = _unreadable_rows(images, num_workers=num_workers)
            broken += found.values()
            kept[name] = images.select([row for row in range(len(images.labels)) if row not in found])
    if len(broken) > config.skip_broken:
        raise DataError(
            f"data.skip_broken={config.skip_broken} but {len(broken)} images can't be read: {'; '.join(broken[:_SHOWN])}"
            f"{'; ...' if len(broken) > _SHOWN else ''}. Repair or remove them, or allow more"
        )
    for text in broken[:_SHOWN]:
        log.warning("left out: %s", text)
    if len(broken) > _SHOWN:
        log.warning("left out %d unreadable images in all", len(broken))
    for name, images in kept.items():
        _refuse_empty(source, name, images)
    return _Readable(source, kept), len(broken)


def _own_split(source: Source, split: Split) -> str:
    """The data set's own split that these images are taken from."""
    return source.val_split or "train" if split is Split.val else split.name


def _unreadable_rows(images: FileImages, *, num_workers: int) -> dict[int, str]:
    """Position and error of each file that can't be read."""
    count = len(images.labels)
    decoder = Decoder(partial(_check, images), num_workers=useful_workers(count, num_workers), pin_memory=False)
    return {row: text for part in decoder.stream(chunked(count, length=_CHUNK)) for row, text in part.items()}


def _check(images: FileImages, chunk: Chunk) -> dict[int, str]:
    errors = ((row, why_unreadable(images.root / images.names[row])) for row in chunk.rows)
    return {row: str(error) for row, error in errors if error is not None}


def _refuse_empty(source: Source, split: str, images: Images) -> None:
    present = set(images.labels.tolist())
    needed = range(len(source.class_names)) if split == "train" else range(0)
    missing = [source.class_names[number] for number in needed if number not in present]
    if missing or not present:
        what = f"class {missing[0]} has" if missing else "it has"
        raise DataError(f"{source.origin}: {what} no readable {split} image; repair some or remove the folder")
