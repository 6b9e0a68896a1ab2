"""Writing checkpoints: never half a file, never more than asked for."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from src.checkpoint import manifest
from src.checkpoint.find import BEST, TEMPORARY, give_name, step_files
from src.errors import CheckpointError


def write_checkpoint(directory: Path, payload: dict[str, Any], *, about: dict[str, Any], is_best: bool, keep: int) -> Path:
    """Write ``step-N.pt`` and, if it is the best, let ``best.pt`` be that file; keep the ``keep`` newest steps.

    ``about`` goes into the manifest beside the payload's config; ``about["step"]`` is N. The content goes to a temporary
    file first and reaches the disk before the rename, so whatever happens, each name holds a whole checkpoint.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{about['step']:08d}.pt"
    temporary = path.with_suffix(TEMPORARY)
    try:
        with temporary.open("wb") as file:
            writer = manifest.HashingWriter(file)
            torch.save(payload, writer)  # type: ignore[arg-type]
            manifest.append(file, sha256=writer.sha256.hexdigest(), size=writer.size, about={**about, "config": payload["config"]})
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if is_best:
        give_name(path, directory / BEST)
    _sync_directory(directory)
    for old in step_files(directory)[keep:]:
        old.unlink(missing_ok=True)
    return path


def refuse_full_disk(directory: Path, *, size: int, keep: int) -> None:
    """Raise ``CheckpointError`` if the disk can't take what a run will keep there: checkpoints of about ``size`` bytes each.

    That is the ``keep`` newest, the best, and one being written, less what already lies in ``directory``.
    """
    existing = sum(path.stat().st_size for path in directory.glob("*.pt"))
    needed = (keep + 2) * size - existing
    free = shutil.disk_usage(directory if directory.exists() else directory.parent).free
    if free < needed:
        raise CheckpointError(
            f"the disk of {directory} has {free / 2**20:,.0f} MiB left, and {keep + 2} checkpoints of {size / 2**20:,.0f} MiB can lie "
            f"there at once (save.keep={keep}, the best, one being written); free some space, lower save.keep or set hydra.run.dir"
        )


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
