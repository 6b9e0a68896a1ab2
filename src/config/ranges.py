"""The range that each option was declared with in ``schema.py``, checked by walking the config."""

import math
import operator
from collections.abc import Callable
from typing import Any

from src.config.keys import Leaf, leaves
from src.config.schema import OPTIONS, Config
from src.config.values import convert, expected, literals, show
from src.errors import ConfigError

LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "at_least": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "at_most": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}
"""Rule -> the comparison of value and limit, and its name."""


def check_ranges(config: Config) -> None:
    """Every value of ``config`` against its declared rule; null is always inside.

    Raises:
        ConfigError: names the key, its value and what is allowed.
    """
    names = {group: getattr(config, group).name for group in OPTIONS}
    for leaf in leaves(type(config), names).values():
        value = operator.attrgetter(leaf.path)(config)
        if value is not None:
            _check_value(leaf, value)


def limits(leaf: Leaf) -> str:
    """What a number must be, in words: ``at least 0 and below 1``; empty where any will do."""
    return " and ".join(f"{text} {leaf.rule[key]}" for key, (_, text) in LIMITS.items() if key in leaf.rule)


def allowed(leaf: Leaf) -> str:
    """The rule in words: ``at least 0 and below 1``, ``auto or at least 2``, ``null or above 0``, ``true, false or auto``, ``a string``."""
    words = leaf.rule.get("words", ())
    literal = literals(leaf.annotation, words)
    return " or ".join([*literal, limits(leaf)]) if limits(leaf) else expected(leaf.annotation, words)


def convert_leaf(value: Any, leaf: Leaf) -> Any:
    """``value`` as the type of ``leaf``; its range is not judged.

    Raises:
        ConfigError: it has another type; the message tells the range too.
    """
    return convert(value, leaf.annotation, path=leaf.path, words=leaf.rule.get("words", ()), limits=limits(leaf))


def _check_value(leaf: Leaf, value: Any) -> None:
    words = leaf.rule.get("words")
    if isinstance(value, str) and words is not None:
        good = value in words
    elif isinstance(value, int | float) and not isinstance(value, bool):
        good = math.isfinite(value) and all(test(value, leaf.rule[key]) for key, (test, _) in LIMITS.items() if key in leaf.rule)
    elif isinstance(value, list):
        good = all(not isinstance(item, float) or math.isfinite(item) for item in value)
    else:
        return
    if not good:
        rule = " or ".join([*(words or ()), limits(leaf)]) if limits(leaf) else allowed(leaf) if words else "finite"
        finite = "finite and " if isinstance(value, float) and not math.isfinite(value) and limits(leaf) else ""
        raise ConfigError(f"{leaf.path}={show(value)} must be {finite}{rule}")
