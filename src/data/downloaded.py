"""Data sets that torchvision downloads and checks, held in memory."""

import fcntl
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from src.config.schema import DownloadedConfig
from src.data.decode import printable
from src.data.images import ArrayImages
from src.data.source import Source, SplitSource
from src.errors import DataError

log = logging.getLogger(__name__)

_DATASETS_DIR = Path(__file__).resolve().parents[2] / "datasets"
_TIMEOUT_SECONDS = 30.0


def downloaded(kind: str, config: DownloadedConfig, class_names: list[str] | None) -> Source:
    """The data set that torchvision calls ``kind``; with ``val_fraction=0`` its official test set is for validation.

    Raises DataError if its files are missing or damaged and can't be downloaded.
    """
    root = _DATASETS_DIR / config.name if config.root is None else Path(config.root).expanduser()
    train = _load(kind, config.name, root, train=True)
    if config.val_fraction == 0:
        log.info("data.val_fraction=0: validation is on the official test set of %s", config.name)
    return SplitSource(
        list(train.classes),
        printable(root),
        {"train": lambda: _images(train), "test": lambda: _images(_load(kind, config.name, root, train=False))},
        val_split="test" if config.val_fraction == 0 else None,
    )


def _images(dataset: Any) -> ArrayImages:
    pixels = torch.as_tensor(dataset.data)
    pixels = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
    return ArrayImages(pixels, torch.as_tensor(dataset.targets).long())


def _load(kind: str, name: str, root: Path, *, train: bool) -> Any:
    """torchvision's data set; downloaded first if its files aren't there or their checksums are wrong."""
    from torchvision import datasets  # late: torchvision loads torch's compiler, which takes as long as torch itself

    make = getattr(datasets, kind)
    try:
        try:
            return make(root, train=train)
        except RuntimeError:  # Not there, or damaged where torchvision has a checksum.
            with _alone(root), _short_timeout():
                return make(root, train=train, download=True)
    except (RuntimeError, OSError, ValueError, AssertionError, EOFError, UnpicklingError) as error:
        raise DataError(_advice(make, name, root, error)) from error


def _advice(make: Any, name: str, root: Path, error: Exception) -> str:
    if hasattr(make, "mirrors"):
        files, folder, url = [file for file, _ in make.resources], root / make.__name__ / "raw", make.mirrors[0]
    else:
        files, folder, url = [make.filename], root, make.url
    cause = " ".join(str(error).split()) or type(error).__name__
    return (
        f"data={name}: its files in {printable(root)} are missing or damaged, and no download repaired that ({cause}); put"
        f" {', '.join(files)} from {url} into {printable(folder)} (remove damaged files there), or give their folder with data.root=DIR"
    )


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One process at a time; those that waited find the files of the first."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _short_timeout() -> Iterator[None]:
    """torchvision sets none, and a firewall that drops packets would hold the run for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
