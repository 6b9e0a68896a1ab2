"""``run.yaml``: the resolved config of a run on disk, and the ways between it, plain types and the typed dataclasses."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from src.config.keys import leaves, option_kind, section_kind, unknown_key
from src.config.schema import OPTIONS, Config
from src.config.values import convert, show
from src.errors import ConfigError

ConfigT = TypeVar("ConfigT", bound=Config)


def to_config(node: DictConfig | Mapping[str, Any], kind: type[ConfigT] = Config) -> ConfigT:  # type: ignore[assignment]
    """The typed config of ``node``; a key that is absent takes its default, a group's dataclass is chosen by its ``name``.

    Raises:
        ConfigError: an unknown key or option, a value of the wrong type, or an interpolation that can't be resolved.
    """
    data = plain(node)
    names = {group: str(_section(data, group).get("name", _default_name(group))) for group in OPTIONS}
    config: ConfigT = _build(data, kind, names, root=kind, prefix="")
    return config


def plain(node: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """``node`` as plain dicts with its interpolations resolved."""
    if not isinstance(node, DictConfig):
        return dict(node)
    try:
        data = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'config'} can't be resolved: {str(error).splitlines()[0]}") from error
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def _default_name(group: str) -> str:
    return str(get_type_hints(Config)[group]().name)


def _section(data: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    section = data.get(path, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{path}={show(section)} is not a section; set one of its options, as in {path}.name=VALUE")
    return section


def _build(data: Mapping[str, Any], kind: type, names: Mapping[str, str], *, root: type, prefix: str) -> Any:
    hints = get_type_hints(kind)
    declared = {field.name: field for field in fields(kind)}
    for key in data:
        if key not in declared:
            raise ConfigError(unknown_key(f"{prefix}{key}", leaves(root, names), names))
    values: dict[str, Any] = {}
    for name, value in data.items():
        path = prefix + name
        section = section_kind(kind, name, names, top=not prefix)
        if section is not None:
            values[name] = _build(_section({path: value}, path), section, names, root=root, prefix=path + ".")
        else:
            values[name] = convert(value, hints[name], path=path, words=declared[name].metadata.get("words", ()))
    for name in declared:
        if not prefix and name in OPTIONS and name not in values:
            values[name] = option_kind(name, names[name])()
    return kind(**values)


def to_dict(config: Any) -> dict[str, Any]:
    """``config`` as plain dicts, lists and scalars; an Enum becomes its name."""
    return {field.name: _plain_value(getattr(config, field.name)) for field in fields(config)}


def _plain_value(value: Any) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item) for key, item in value.items()}
    return value


def flatten(config: Config | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted path -> scalar; a list becomes the text that would be typed on the command line."""
    data = to_dict(config) if is_dataclass(config) else config
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + str(key)] = show(value) if isinstance(value, list) else value
    return flat


def digest(config: Config) -> str:
    """SHA-256 (hex) of ``config``, the same for equal configs on every machine."""
    canonical = json.dumps(to_dict(config), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def save(config: Config, path: Path) -> None:
    """Write ``path`` atomically as UTF-8 YAML."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(yaml.safe_dump(to_dict(config), allow_unicode=True, sort_keys=False), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path, kind: type[ConfigT] = Config) -> ConfigT:  # type: ignore[assignment]
    """The config that ``save`` wrote.

    Raises:
        ConfigError: the file can't be read or isn't a config.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read as a run's config: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is not a run's config")
    return to_config(data, kind)
