"""What a data set is to the rest: class names and the images of its splits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from src.data.images import Images
from src.errors import DataError


class Source(Protocol):
    """A data set."""

    @property
    def class_names(self) -> list[str]:
        """The classes in the order of their numbers."""
        ...

    @property
    def origin(self) -> str:
        """Where the images come from, in words."""
        ...

    @property
    def val_split(self) -> str | None:
        """The split used for validation; None: some training images are held out."""
        ...

    def images(self, split: str) -> Images:
        """The images of ``train``, ``val`` or ``test``. Raises DataError if the data set has no such split."""
        ...


@dataclass(frozen=True)
class SplitSource:
    """A data set whose splits are made when they are first asked for."""

    class_names: list[str]
    origin: str
    splits: Mapping[str, Callable[[], Images]]
    val_split: str | None = None
    _made: dict[str, Images] = field(default_factory=dict)

    def images(self, split: str) -> Images:
        """The images of a split."""
        if split not in self.splits:
            raise DataError(f"split={split}: this data set has no {split} images of its own; use {' or '.join(self._usable)}")
        if split not in self._made:
            self._made[split] = self.splits[split]()
        return self._made[split]

    @property
    def _usable(self) -> list[str]:
        return ["train", "val", *(["test"] if "test" in self.splits else [])]
