"""Reading checkpoints: verified, and never a pickle that could run code."""

import pickle
from pathlib import Path
from typing import Any, cast

import torch

from src.checkpoint import manifest
from src.errors import CheckpointError


def load(path: Path) -> dict[str, Any]:
    """The payload of a checkpoint, tensors on the CPU.

    Raises ``CheckpointError`` for a file that is missing, damaged, foreign or not plain.
    """
    manifest.verify(path)
    try:
        return cast(dict[str, Any], torch.load(path, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path} can't be loaded safely ({reason}); only checkpoints of this program are read") from None
