"""Reading checkpoints: verified, and never a pickle that could run code."""

import logging
from pathlib import Path
from typing import Any, cast

import torch

from src.checkpoint import manifest
from src.errors import CheckpointError

log = logging.getLogger(__name__)


def load(path: Path) -> dict[str, Any]:
    """The payload of a checkpoint, tensors on the CPU.

    Raises ``CheckpointError`` for a file that is missing, damaged, foreign or not plain.
    """
    manifest.verify(path)
    return cast(dict[str, Any], load_plain(path, fix="only checkpoints of this program are read"))


def load_plain(path: Path, *, fix: str) -> Any:
    """What ``torch.save`` wrote, tensors on the CPU and plain types.

    Raises ``CheckpointError``, which ends with ``fix``, for anything else.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # foreign bytes make torch raise about anything: UnpicklingError, EOFError, struct.error, UnicodeError, ...
        log.debug("torch says: %s", error)  # not for people: it advises to trust the file
        what = "it is damaged, or holds more than tensors and plain values"
        raise CheckpointError(f"{path} ({path.stat().st_size} bytes) can't be loaded safely ({what}); {fix}") from None
