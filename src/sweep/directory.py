"""Claiming a run directory before Hydra touches it: unique, writable, and held by one process at a time."""

import fcntl
import os
import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO

from src.errors import ConfigError

HOLDS_A_RUN = ("run.yaml", "result.json", "multirun.yaml")
LOCK = ".lock"


@dataclass(frozen=True)
class Claim:
    """A directory that this process holds until ``release`` or its end, however it ends."""

    path: Path
    lock: IO[str]

    def release(self) -> None:
        """Let others claim the directory."""
        self.lock.close()

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def claim_new(pattern: Path) -> Claim:
    """Create and hold ``pattern``, or ``pattern-1``, ``pattern-2``, ... where it exists.

    Raises:
        ConfigError: it can't be created.
    """
    for number in count():
        path = pattern if number == 0 else pattern.with_name(f"{pattern.name}-{number}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()  # atomic: of several processes one succeeds
        except FileExistsError:
            if not path.parent.is_dir():
                raise ConfigError(f"{path.parent} can't hold runs: it is not a directory") from None
            continue
        except OSError as error:
            raise ConfigError(f"the run directory {path} can't be created: {error.strerror}") from error
        return Claim(path, _lock(path, key=str(path)))
    raise AssertionError("count() never ends")


def claim_given(path: Path, *, resuming: bool, key: str) -> Claim:
    """Hold the directory that the user named as ``key``, creating it where it is missing.

    Raises:
        ConfigError: another live process holds it, it holds a run that isn't to be resumed, or it can't be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"{key}={path} is not a directory") from None
    except OSError as error:
        raise ConfigError(f"{key}={path} can't be created: {error.strerror}") from error
    lock = _lock(path, key=f"{key}={path}")
    found = next((name for name in HOLDS_A_RUN if (path / name).exists()), None)
    if found is not None and not resuming:
        lock.close()
        raise ConfigError(f"{key}={path} already holds a run ({found}); choose another directory, or continue that run with resume=auto")
    return Claim(path, lock)


def slug(name: str) -> str:
    """``name`` as one component of a path: letters, digits, dot and dash, at most 80 bytes."""
    text = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return text.encode()[:80].decode(errors="ignore") or "run"


def _lock(directory: Path, *, key: str) -> IO[str]:
    try:
        # Append mode: opening must not wipe the holder's process id.
        file = open(directory / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 - held by the claim
    except OSError as error:
        raise ConfigError(f"{key} can't be written: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = f"process {file.read().strip() or 'unknown'}" if isinstance(error, BlockingIOError) else error.strerror
        file.close()
        raise ConfigError(f"{key} is in use: {holder}; choose another directory") from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
