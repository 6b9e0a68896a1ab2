"""The config of a saved model with this command line's choices on top; pure functions on plain dicts, and one that reads the file."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.checkpoint import manifest
from src.checkpoint.drift import complete
from src.config.keys import option_kind
from src.config.resolve import absolute_reference
from src.config.schema import OPTIONS
from src.errors import ConfigError
from src.launch.locate import locate
from src.sweep.saved import refuse_damaged

OWN = ("name", "resume", "tags", "tracking", "checkpoint", "split", "trust_code", "predict", "export")
"""Keys of this run, never taken from the checkpoint."""


@dataclass(frozen=True)
class Difference:
    """A group whose option, or a key whose value, is not the checkpoint's; None stands for a free key that one side doesn't have."""

    key: str
    saved: Any
    used: Any


def saved_config(reference: str | None, *, base: Path, uri: str | None) -> tuple[Path, dict[str, Any]]:
    """The checkpoint file that ``reference`` (a file, a run directory or a run id) means, and the config in it, complete.

    A relative path is taken from ``base``, a run id is looked up in the MLflow store at ``uri`` (None: the usual one).

    Raises:
        ConfigError: no checkpoint was named.
        CheckpointError: it is missing or damaged, or its config is none of this version's.
    """
    absolute = absolute_reference(reference, base)
    if not absolute:
        raise ConfigError("checkpoint is not set; give a checkpoint file, a run directory or an MLflow run id: checkpoint=PATH")
    path = locate(absolute, best=True, uri=uri)
    refuse_damaged(path)
    return path, complete(path, manifest.read_config(path))


def saved_options(saved: Mapping[str, Any]) -> dict[str, str]:
    """Group -> option of a saved config.

    Raises:
        ConfigError: an option that this version doesn't have.
    """
    names = {group: saved[group]["name"] for group in OPTIONS if group in saved}
    for group, name in names.items():
        option_kind(group, name)
    return names


def merge(saved: Mapping[str, Any], composed: Mapping[str, Any], *, groups: Collection[str], keys: Collection[str]) -> dict[str, Any]:
    """``saved`` with, from ``composed``: the run's own keys, the whole of each group in ``groups`` and each value in ``keys``."""
    merged = {key: deepcopy(value) for key, value in saved.items() if key not in OWN}
    for key in (*OWN, *groups):
        if key in composed:
            merged[key] = deepcopy(composed[key])
    for path in keys:
        if path.partition(".")[0] not in OWN:
            _copy(composed, merged, path.split("."))
    return merged


def differences(saved: Mapping[str, Any], used: Mapping[str, Any]) -> list[Difference]:
    """What two flat configs differ in, sorted by key, without the run's own keys.

    A group with another option is one difference; of its keys only those that both options have are compared.
    """
    changed = {f"{group}.name": group for group in OPTIONS if saved.get(f"{group}.name") != used.get(f"{group}.name")}
    found = []
    for key in sorted(saved.keys() | used.keys()):
        top = key.partition(".")[0]
        one_sided = key not in saved or key not in used
        if top not in OWN and saved.get(key) != used.get(key) and not (one_sided and top in changed.values()):
            found.append(Difference(changed.get(key, key), saved.get(key), used.get(key)))
    return sorted(found, key=lambda difference: difference.key)


def _copy(source: Mapping[str, Any], target: dict[str, Any], parts: list[str]) -> None:
    for part in parts[:-1]:
        source, target = source[part], target.setdefault(part, {})
    target[parts[-1]] = deepcopy(source[parts[-1]])
