"""Plain values (from YAML, JSON or the command line) to the annotated type of an option, with errors a user can act on."""

from collections.abc import Mapping
from enum import Enum, EnumMeta
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from src.errors import ConfigError

NOUNS: dict[Any, str] = {int: "an integer", float: "a float", str: "a string", bool: "true or false", dict: "a mapping"}


def convert(value: Any, annotation: Any, *, path: str, words: tuple[str, ...] = (), limits: str = "") -> Any:
    """``value`` as ``annotation`` (a scalar, an Enum, ``list[float]``, ``dict[str, Any]``, Optional or Union of them).

    Raises:
        ConfigError: ``value`` has another type; ``words`` are named as what a Union's string may be, ``limits`` as what a number may be.
    """
    kinds = _members(annotation)
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        try:
            return _read(value, kind, strict=len(kinds) > 1)
        except (TypeError, ValueError):
            continue
    raise ConfigError(f"{path}={show(value)} is not {expected(annotation, words, limits)}")


def show(value: Any) -> str:
    """``value`` as it would be typed on a command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{','.join(map(show, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{show(item)}" for key, item in value.items()) + "}"
    return str(value)


def expected(annotation: Any, words: tuple[str, ...] = (), limits: str = "") -> str:
    """What ``annotation`` accepts, for an error message: ``an integer (at least 2) or auto``."""
    kinds = [kind for kind in _members(annotation) if kind is not NoneType and not (words and kind is str)]
    nouns = [f"{noun} ({limits})" if limits and kind in (int, float) else noun for kind in kinds for noun in _nouns(kind)]
    nouns += [*words, *(["null"] if NoneType in _members(annotation) else [])]
    return nouns[0] if len(nouns) == 1 else f"{', '.join(nouns[:-1])} or {nouns[-1]}"


def literals(annotation: Any, words: tuple[str, ...] = ()) -> list[str]:
    """The values of ``annotation`` that can be written out: true and false, members of an Enum, ``words``, null."""
    found = [noun for kind in _members(annotation) if kind is bool or isinstance(kind, EnumMeta) for noun in _nouns(kind)]
    return [*found, *words, *(["null"] if NoneType in _members(annotation) else [])]


def _nouns(kind: Any) -> list[str]:
    if kind is bool:
        return ["true", "false"]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind.__members__)
    if get_origin(kind) is list:
        return [f"a list of {NOUNS[get_args(kind)[0]].split()[-1]}s"]
    return [NOUNS[get_origin(kind) or kind]]


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _read(value: Any, kind: Any, *, strict: bool) -> Any:
    """One attempt; raises TypeError or ValueError. ``strict`` keeps a Union from turning a number into its string member."""
    if kind is bool:
        return _bool(value)
    if kind is int or kind is float:
        if isinstance(value, bool) or (kind is int and isinstance(value, float)):
            raise TypeError
        return kind(value)
    if kind is str:
        if not isinstance(value, str) and (strict or not isinstance(value, int | float)):
            raise TypeError
        return str(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value if isinstance(value, kind) else _enum(value, kind)
    if get_origin(kind) is list and isinstance(value, list | tuple):
        return [_read(item, get_args(kind)[0], strict=strict) for item in value]
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _bool(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise TypeError
    return value


def _enum(value: Any, kind: type[Enum]) -> Enum:
    if not isinstance(value, str) or value not in kind.__members__:
        raise ValueError
    return kind[value]
