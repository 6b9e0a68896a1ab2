"""Which option paths exist, given the option chosen of every group, and what to say about one that doesn't."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any, get_origin, get_type_hints

from src.config.schema import OPTIONS, Config
from src.errors import ConfigError

HABITS: dict[str, dict[str, str]] = {
    "precision": dict.fromkeys(("fp16", "float16", "half"), "amp precision.dtype=float16")
    | {"mixed": "amp", "bfloat16": "bf16", "float32": "fp32", "full": "fp32"},
}
"""Group -> what other programs call an option -> what it is here."""


_hints = cache(get_type_hints)  # slow, and asked for again and again


@dataclass(frozen=True)
class Leaf:
    """A single value of the config: its dotted path, annotation and default, and what it was declared with (its doc line, its rule)."""

    path: str
    annotation: Any
    default: Any
    rule: Mapping[str, Any]


def option_kind(group: str, name: Any) -> type:
    """The dataclass of option ``name`` of ``group``.

    Raises:
        ConfigError: no such option.
    """
    kind = OPTIONS[group].get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigError(unknown_option(group, str(name), list(OPTIONS[group])))
    return kind


def section_kind(kind: type, name: str, names: Mapping[str, str], *, top: bool) -> type | None:
    """The dataclass of field ``name`` of ``kind``, or None for a single value; ``names`` holds the chosen options of the groups."""
    if top and name in OPTIONS:
        return option_kind(name, names.get(name))
    annotation = _hints(kind)[name]
    return annotation if isinstance(annotation, type) and is_dataclass(annotation) else None


def leaves(kind: type, names: Mapping[str, str]) -> dict[str, Leaf]:
    """Every single value of the config ``kind`` by its path, with the groups' options ``names`` (group -> option)."""
    return dict(_leaves(kind, tuple(sorted(names.items()))))


@cache
def _leaves(kind: type, names: tuple[tuple[str, str], ...]) -> dict[str, Leaf]:
    return {leaf.path: leaf for leaf in _walk(kind, dict(names), "")}


def _walk(kind: type, names: Mapping[str, str], prefix: str) -> Iterator[Leaf]:
    hints = _hints(kind)
    for field in fields(kind):
        path = prefix + field.name
        section = section_kind(kind, field.name, names, top=not prefix)
        if section is None:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            yield Leaf(path, hints[field.name], default, field.metadata)
        else:
            yield from _walk(section, names, path + ".")


def every_leaf(kind: type) -> dict[str, Leaf]:
    """The single values of the config ``kind`` by path, whatever options are chosen; of several with one path the first."""
    found = leaves(kind, {group: next(iter(options)) for group, options in OPTIONS.items()})
    for group, options in OPTIONS.items():
        for name in options:
            found = option_leaves(group, name) | found
    return found


def option_leaves(group: str, name: str) -> dict[str, Leaf]:
    """The single values of option ``name`` of ``group`` by path."""
    return {leaf.path: leaf for leaf in _walk(option_kind(group, name), {}, f"{group}.")}


def choosable(paths: Iterable[str]) -> list[str]:
    """``paths`` without the name of a group's option, which the group itself sets."""
    return [path for path in paths if path.removesuffix(".name") not in OPTIONS]


def sections(options: Iterable[str]) -> set[str]:
    """The inner paths of ``options``: ``{"optim"}`` for ``["optim.lr", "seed"]``."""
    return {path.rsplit(".", depth)[0] for path in options for depth in range(1, path.count(".") + 1)}


def free_sections(options: Mapping[str, Leaf]) -> tuple[str, ...]:
    """Paths of the mappings that take keys of the user's own."""
    return tuple(path for path, leaf in options.items() if get_origin(leaf.annotation) is dict)


def unknown_key(key: str, options: Mapping[str, Leaf], names: Mapping[str, str]) -> str:
    """What to say about ``key``, which is none of ``options``."""
    group = key.partition(".")[0]
    if owners := _owners(key):
        return f"{key} belongs to {' or '.join(f'{group}={name}' for name in owners)}; {group}={names[group]} has no such option"
    if (leaf := _enclosing(key, options)) is not None:
        return f"{key} is not an option: {leaf} is a single value; write {leaf}=VALUE"
    if (near := suggestion(key, options)) is not None:
        return f"{key} is not an option; did you mean {near}{condition(near, options)}?"
    siblings = [path for path in choosable(options) if path.rpartition(".")[0] == key.rpartition(".")[0] != ""]
    return f"{key} is not an option; " + (f"use one of {', '.join(siblings)}" if siblings else "--help lists them all")


def suggestion(key: str, options: Mapping[str, Leaf]) -> str | None:
    """What ``key`` most likely stands for: one of ``options``, a group, or a key that needs another choice of a group."""
    last = key.rpartition(".")[2]
    here, anywhere = [*choosable(options), *OPTIONS], choosable(every_leaf(Config))
    same_here, same_anywhere = ([path for path in paths if path.rpartition(".")[2] == last] for paths in (here, anywhere))
    return next((near for paths in (same_here, same_anywhere, here, anywhere) if (near := nearest(key, paths))), None)


def condition(path: str, options: Mapping[str, Leaf]) -> str:
    """`` (with parallel=ddp)`` for a key that ``options`` lack because another choice has it."""
    owners = [] if path in options else _owners(path)
    return f" (with {path.partition('.')[0]}={owners[0]})" if owners else ""


def _owners(key: str) -> list[str]:
    """The options of the key's group that have it, unless all do."""
    group = key.partition(".")[0]
    kinds = OPTIONS.get(group, {})
    names = [name for name in kinds if _has(option_leaves(group, name), key)]
    return names if len(names) < len(kinds) else []


def _has(options: Mapping[str, Leaf], key: str) -> bool:
    return key in options or any(key.startswith(f"{path}.") for path in free_sections(options))


def unknown_option(group: str, name: str, options: list[str]) -> str:
    """What to say about ``group=name``, which is none of ``options``."""
    if not options:
        return f"{group}={name} is not an option of {group}: there are none"
    meant = _meant(group, name, options)
    hint = f"did you mean {group}={meant}? Options: " if meant else "use one of "
    return f"{group}={name} is {'empty' if not name else f'not an option of {group}'}; {hint}{', '.join(sorted(options))}"


def _meant(group: str, name: str, options: list[str]) -> str | None:
    """The option that ``name`` most likely stands for: a habit from elsewhere, another case, the start of a name, a typo."""
    low = name.lower()
    habit = HABITS.get(group, {}).get(low)
    if low not in options and habit is not None and habit.split()[0] in options:
        return habit
    starts = [option for option in options if low and option.startswith(low)]
    close = [low] if low in options else starts or get_close_matches(low, options, n=1, cutoff=0.5)
    return close[0] if close else None


def nearest(key: str, options: Iterable[str]) -> str | None:
    """The option that ``key`` most likely stands for: the same last word elsewhere, a typo in its own section, a typo anywhere."""
    paths = list(options)
    last = key.rpartition(".")[2]
    same = [path for path in paths if path.rpartition(".")[2] == last]
    if same:
        return max(same, key=lambda path: SequenceMatcher(None, key, path).ratio())
    siblings = {path.rpartition(".")[2]: path for path in paths if path.rpartition(".")[0] == key.rpartition(".")[0]}
    everywhere = {path.rpartition(".")[2]: path for path in paths}
    for words, word, cutoff in ((siblings, last, 0.6), ({path: path for path in paths}, key, 0.8), (everywhere, last, 0.75)):
        if close := get_close_matches(word, list(words), n=1, cutoff=cutoff):
            return words[close[0]]
    return None


def _enclosing(key: str, options: Mapping[str, Leaf]) -> str | None:
    """The single value that ``key`` reaches into, if any."""
    parts = key.split(".")
    return next((path for depth in range(1, len(parts)) if (path := ".".join(parts[:depth])) in options), None)
