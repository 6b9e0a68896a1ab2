"""Files that a run is to start from, looked at before anything is created; no torch here, and nothing in them is run."""

import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from src.checkpoint import manifest
from src.errors import CheckpointError

_PICKLE = b"\x80"
"""First byte of a state dict in the format before zip archives."""
_FORM: dict[str, tuple[type, ...]] = {"step": (int,), "config": (dict,), "tracking": (dict, type(None))}
"""Entries of a manifest that decide where a run goes on, and their types."""


def refuse_damaged(path: Path) -> None:
    """Raise ``CheckpointError`` for anything but a whole checkpoint of this program."""
    about = path.stat()
    _verify(path, about.st_size, about.st_mtime_ns)


def refuse_foreign(path: Path) -> None:
    """Raise ``CheckpointError`` for a file to start from that is damaged, or obviously no weights; their reader judges the rest."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read ({error.strerror}); give a weights file") from None
    if start == b"PK":
        if not zipfile.is_zipfile(path) or _has_comment(path):  # half an archive, or one of our checkpoints
            refuse_damaged(path)
    elif start[:1] != _PICKLE and path.suffix != ".safetensors":
        size = path.stat().st_size
        raise CheckpointError(
            f"{path} ({size} bytes) is no weights file; give a checkpoint, a state dict saved by torch.save, or a .safetensors file"
        )


def _has_comment(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return bool(archive.comment)


@lru_cache
def _verify(path: Path, size: int, changed: int) -> None:
    """Once a file, however many jobs of a sweep start from it."""
    _refuse_strange(path, manifest.verify(path))


def _refuse_strange(path: Path, about: dict[str, Any]) -> None:
    """A digest shows damage, not who wrote the file."""
    for key, kinds in _FORM.items():
        if not isinstance(about.get(key), kinds):
            raise CheckpointError(f"{path}: the {key} in its manifest is missing or of another type; give a checkpoint of this program")
