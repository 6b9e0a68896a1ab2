"""The overrides of a command line, judged one by one against the dataclasses, before Hydra says something vaguer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString
from hydra.errors import HydraException

from src.config.keys import Leaf, free_sections, leaves, sections, unknown_key, unknown_option
from src.config.ranges import convert_leaf
from src.config.schema import OPTIONS, Config
from src.errors import ConfigError

EXPERIMENT = "experiment"
HYDRA_FREE = ("hydra.job.env_set",)
"""Mappings of Hydra's own config that take new keys one by one."""


def parse(texts: Sequence[str], parser: OverridesParser) -> list[Override]:
    """Overrides from their text.

    Raises:
        ConfigError: one of them breaks Hydra's grammar, deletes, or has no value.
    """
    return [_parse_one(text, parser) for text in texts]


def _parse_one(text: str, parser: OverridesParser) -> Override:
    key, equals, value = text.partition("=")
    if text.startswith("~"):
        raise ConfigError(f"{text}: options can't be deleted; set them, to null where they allow it")
    if not equals or not key.strip("+"):
        raise ConfigError(f"{text} is not an override; write KEY=VALUE")
    try:
        override = parser.parse_overrides([text])[0]
    except HydraException as error:
        reason = str(error).removeprefix(f"Error parsing override '{text}'").strip().splitlines()[0]
        reason = _unbalanced(value) or ("a special character" if reason.startswith("Lexer") else reason)
        if value.startswith("[") and _unbalanced(value) is None:
            hint = f"quote the texts inside it, and the whole for the shell: \"{key}=['a=b','c']\""
            raise ConfigError(f"{text} can't be read: {reason}; {hint}") from error
        quoted = quote(value.strip("\"'"))
        raise ConfigError(f'{text} can\'t be read: {reason}; if the value is meant as text, quote it: "{key}={quoted}"') from error
    if override.package is not None:
        raise ConfigError(f"{text}: packages (@) are not accepted on the command line")
    if override.key_or_group == "hydra":
        raise ConfigError(f"{text}: set options of Hydra one by one, as in hydra.run.dir=DIR")
    return override


def _unbalanced(value: str) -> str | None:
    for mark in "\"'":
        if value.count(mark) % 2:
            return f"a {mark} is not closed"
    for opening, closing in ("[]", "{}", "()"):
        if value.count(opening) != value.count(closing):
            return f"a {opening} is not closed" if value.count(opening) > value.count(closing) else f"a {closing} closes nothing"
    return None


def check_twice(overrides: Sequence[Override]) -> None:
    """Raises ConfigError for a key that is swept and given a second time: which one counts would be a guess."""
    for swept in (o for o in overrides if o.is_sweep_override()):
        other = next((o for o in overrides if o is not swept and o.key_or_group == swept.key_or_group), None)
        if other is not None:
            first, second = sorted((swept, other), key=overrides.index)
            raise ConfigError(f"{swept.key_or_group} is given twice, as {first.input_line} and {second.input_line}; keep one")


def quote(text: str) -> str:
    """``text`` as a quoted string of Hydra's grammar that gives exactly ``text`` back."""
    # OmegaConf would take ${ for an interpolation, even inside quotes.
    return QuotedString(text=text.replace("${", "\\${"), quote=Quote.single).with_quotes()


def is_hydra(override: Override) -> bool:
    """Whether it sets Hydra's own config."""
    return override.is_hydra_override()


def is_choice(override: Override) -> bool:
    """Whether it chooses an option of a group (a mapping given for a group sets its values instead)."""
    return override.key_or_group in (*OPTIONS, EXPERIMENT) and not isinstance(override.value(), dict)


def value_keys(override: Override) -> list[str]:
    """The paths that a value override sets; several for a mapping."""
    return [key for key, _ in _items(override.key_or_group, override.value())]


def check_choice(override: Override, *, groups: Sequence[str], options: Callable[[str], list[str]]) -> None:
    """Raises ConfigError unless the group exists here and has the option."""
    group, name = override.key_or_group, override.value()
    if group not in groups:
        raise ConfigError(f"{group} does not apply here; the groups are {', '.join(groups)}")
    if override.type is not OverrideType.CHANGE:
        raise ConfigError(f"{override.input_line}: write {group}={name} without +")
    if isinstance(name, list):
        raise ConfigError(f"{override.input_line}: {group} takes one option; add -m and write {group}=A,B to sweep over several")
    if not isinstance(name, str) or name not in options(group):
        raise ConfigError(unknown_option(group, "null" if name is None else str(name), options(group)))


def check_value(override: Override, *, kind: type[Config], names: Mapping[str, str]) -> None:
    """Raises ConfigError unless the key exists in ``kind`` with the chosen options ``names`` and the value has its type."""
    key, adds = override.key_or_group, override.type is not OverrideType.CHANGE
    if is_hydra(override):
        if adds and not _is_below(key, HYDRA_FREE):
            raise ConfigError(f"{override.input_line}: + adds keys under {' and '.join(HYDRA_FREE)} only")
        return
    options = leaves(kind, names)
    free = free_sections(options)
    if _is_below(key, free):
        if key in options:
            _check_leaf(key, override.value(), options)
        return
    if key not in options and key not in sections(options):
        raise ConfigError(unknown_key(key, options, names))
    if adds:
        raise ConfigError(f"{override.input_line}: + adds new keys, under {' and '.join(free)} only; write {key}=VALUE")
    if key not in options and not isinstance(override.value(), dict):
        some = next(path for path in options if path.startswith(f"{key}.") and path.removesuffix(".name") not in OPTIONS)
        raise ConfigError(f"{override.input_line}: {key} is a section; set one of its options, such as {some}")
    for path, value in _items(key, override.value()):
        if path not in options:
            raise ConfigError(unknown_key(path, options, names))
        _check_leaf(path, value, options)


def check_new_key(override: Override, *, kind: type[Config], names: Mapping[str, str]) -> None:
    """Raises ConfigError for a key of the user's own that is set without +; for use after a composition that failed."""
    free = free_sections(leaves(kind, names))
    if override.type is OverrideType.CHANGE and override.key_or_group not in free and _is_below(override.key_or_group, free):
        raise ConfigError(f"{override.input_line}: {override.key_or_group} is not set yet; write +{override.input_line} to add it")


def _check_leaf(path: str, value: Any, options: Mapping[str, Leaf]) -> None:
    group, _, rest = path.partition(".")
    if group in OPTIONS and rest == "name":
        raise ConfigError(f"{path}={value}: choose the group option instead: {group}={value}")
    if not (isinstance(value, str) and "${" in value):  # an interpolation is judged by what it gives
        convert_leaf(value, options[path])


def _items(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted path and value of each entry of a mapping, or of the value itself."""
    if not isinstance(value, dict) or not value:
        yield key, value
        return
    for name, item in value.items():
        yield from _items(f"{key}.{name}", item)


def _is_below(key: str, roots: Sequence[str]) -> bool:
    return any(key == root or key.startswith(f"{root}.") for root in roots)
