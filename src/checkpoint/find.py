"""Which checkpoint a path means; no torch here."""

import logging
import os
import re
import shutil
from pathlib import Path

from src.checkpoint import manifest
from src.errors import CheckpointError

log = logging.getLogger(__name__)

BEST = "best.pt"
TEMPORARY = ".tmp"
_STEP = re.compile(r"step-(\d+)\.pt")


def step_files(directory: Path) -> list[Path]:
    """The step checkpoints of a directory, newest step first; the names decide, not file times."""
    found = [(int(match[1]), path) for path in directory.glob("step-*.pt") if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def remove_leftovers(directory: Path) -> None:
    """Delete temporary files of a writer that was killed."""
    for path in directory.glob(f"*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def set_aside(directory: Path, *, after: int) -> None:
    """Rename the checkpoints after this step: they are damaged, and would count among the newest that are kept."""
    for path in step_files(directory):
        if int(path.stem.removeprefix("step-")) > after:
            path.rename(path.with_suffix(f"{path.suffix}.damaged"))


def give_name(path: Path, name: Path) -> None:
    """Let ``name`` be the file at ``path`` too, also if that goes; ``name`` is a whole file at any time."""
    temporary = name.with_suffix(TEMPORARY)
    temporary.unlink(missing_ok=True)
    try:
        try:
            os.link(path, temporary)  # the same bytes under a second name: no copy
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(path, temporary)
        os.replace(temporary, name)
    finally:
        temporary.unlink(missing_ok=True)


def newest_valid(directory: Path) -> Path | None:
    """The newest checkpoint whose digest fits, or else the best one; damaged ones are passed over with a warning. None if there are none.

    Raises ``CheckpointError`` if there are some but every one is damaged.
    """
    files = [*step_files(directory), *filter(Path.is_file, [directory / BEST])]
    for path in files:
        try:
            manifest.verify(path)
        except CheckpointError as error:
            log.warning("%s; falling back to the one before", error)
        else:
            return path
    if files:
        raise CheckpointError(f"{directory}: all {len(files)} checkpoints are damaged; start anew without resume")
    return None


def resolve(text: str, *, best: bool) -> Path:
    """The checkpoint file behind a file, a run directory or its ``checkpoints`` folder: the best one or the newest.

    Raises ``CheckpointError`` when there is none.
    """
    path = Path(text)
    if path.is_file():
        return path
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; give a checkpoint file, a run directory or an MLflow run id")
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if best and (directory / BEST).is_file():
        return directory / BEST
    newest = newest_valid(directory)
    if newest is None:
        raise CheckpointError(f"{path} holds no checkpoint; give a checkpoint file or the directory of a run that has saved one")
    return newest
