"""Which option paths exist, given the option chosen of every group, and what to say about one that doesn't."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any, get_origin, get_type_hints

from src.config.schema import OPTIONS
from src.errors import ConfigError


@dataclass(frozen=True)
class Leaf:
    """A single value of the config: its dotted path, its annotation and the rule it was declared with."""

    path: str
    annotation: Any
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
    annotation = get_type_hints(kind)[name]
    return annotation if isinstance(annotation, type) and is_dataclass(annotation) else None


def leaves(kind: type, names: Mapping[str, str]) -> dict[str, Leaf]:
    """Every single value of the config ``kind`` by its path, with the groups' options ``names`` (group -> option)."""
    return dict(_leaves(kind, tuple(sorted(names.items()))))


@cache
def _leaves(kind: type, names: tuple[tuple[str, str], ...]) -> dict[str, Leaf]:
    return {leaf.path: leaf for leaf in _walk(kind, dict(names), "")}


def _walk(kind: type, names: Mapping[str, str], prefix: str) -> Iterator[Leaf]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        path = prefix + field.name
        section = section_kind(kind, field.name, names, top=not prefix)
        if section is None:
            yield Leaf(path, hints[field.name], field.metadata)
        else:
            yield from _walk(section, names, path + ".")


def sections(options: Iterable[str]) -> set[str]:
    """The inner paths of ``options``: ``{"optim"}`` for ``["optim.lr", "seed"]``."""
    return {path.rsplit(".", depth)[0] for path in options for depth in range(1, path.count(".") + 1)}


def free_sections(options: Mapping[str, Leaf]) -> tuple[str, ...]:
    """Paths of the mappings that take keys of the user's own."""
    return tuple(path for path, leaf in options.items() if get_origin(leaf.annotation) is dict)


def unknown_key(key: str, options: Mapping[str, Leaf], names: Mapping[str, str]) -> str:
    """What to say about ``key``, which is none of ``options``."""
    group, _, rest = key.partition(".")
    owners = [name for name, kind in OPTIONS.get(group, {}).items() if rest in {field.name for field in fields(kind)}]
    if owners:
        return f"{key} belongs to {' or '.join(f'{group}={name}' for name in owners)}; {group}={names[group]} has no such option"
    if (leaf := _enclosing(key, options)) is not None:
        return f"{key} is not an option: {leaf} is a single value; write {leaf}=VALUE"
    choosable = [path for path in options if path.removesuffix(".name") not in OPTIONS]
    if (near := nearest(key, [*choosable, *OPTIONS])) is not None:
        return f"{key} is not an option; did you mean {near}?"
    siblings = [path for path in choosable if path.rpartition(".")[0] == key.rpartition(".")[0] != ""]
    return f"{key} is not an option; use one of {', '.join(siblings)}" if siblings else f"{key} is not an option; --cfg job lists them all"


def unknown_option(group: str, name: str, options: list[str]) -> str:
    """What to say about ``group=name``, which is none of ``options``."""
    if not options:
        return f"{group}={name} is not an option of {group}: there are none"
    close = get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"did you mean {group}={close[0]}? Options: " if close else "use one of "
    return f"{group}={name} is not an option of {group}; {hint}{', '.join(sorted(options))}"


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
