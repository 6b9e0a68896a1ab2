"""How a run's config differs from that of the checkpoint it goes on from, and which differences can't be."""

from pathlib import Path
from typing import Any

from src.config import runfile
from src.config.values import show
from src.errors import CheckpointError, ConfigError

FATAL = ("model", "optim.name", "optim.decay_all")
"""Config keys that must match: the weights or the optimizer's state would not fit."""
ONLY_AT_START = ("model.pretrained", "model.reset_head")
"""Keys of a fatal section that a resumed run has no use for: its weights are the checkpoint's."""
OF_THE_START = ("resume", "name")
"""Keys that only say how this process was started."""


def drift(path: Path, saved: dict[str, Any], config: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> (value in the checkpoint at ``path``, value now), for the keys whose values differ.

    Raises:
        CheckpointError: the network or the optimizer is another one; names all that says so. Or ``saved`` is no config.
    """
    before, after = runfile.flatten(complete(path, saved)), runfile.flatten(config)
    found = {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in OF_THE_START
    }
    fatal = {key: values for key, values in found.items() if is_fatal(key)}
    if fatal:
        raise CheckpointError(f"{path} can't go on with another network or optimizer: {'; '.join(tell(fatal))}; set them back to resume")
    return found


def complete(path: Path, saved: dict[str, Any]) -> dict[str, Any]:
    """The config in the checkpoint at ``path`` with every key of this version.

    Raises:
        CheckpointError: this version can't use it.
    """
    try:
        return runfile.to_dict(runfile.to_config(saved))
    except ConfigError as error:
        raise CheckpointError(f"{path}: this version can't use its config ({error}); use the version that wrote it") from error


def is_fatal(key: str) -> bool:
    """Whether a run with another value of ``key`` can't go on from a checkpoint."""
    return key not in ONLY_AT_START and (key in FATAL or key.startswith(tuple(f"{name}." for name in FATAL)))


def tell(found: dict[str, tuple[Any, Any]]) -> list[str]:
    """What ``drift`` found, in words."""
    return [f"{key} was {show(old)} and is {show(new)} now" for key, (old, new) in found.items()]
