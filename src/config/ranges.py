"""The range that each option was declared with in ``schema.py``, checked by walking the config."""

import math
import operator
from collections.abc import Callable
from typing import Any

from src.config.keys import Leaf, leaves
from src.config.schema import OPTIONS, Config
from src.config.values import expected, show
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


def allowed(leaf: Leaf) -> str:
    """The rule in words: ``at least 0 and below 1``, ``auto or at least 2``, ``true, false or auto``."""
    words = leaf.rule.get("words", ())
    limits = " and ".join(f"{text} {leaf.rule[key]}" for key, (_, text) in LIMITS.items() if key in leaf.rule)
    if limits:
        return " or ".join([*words, limits])
    return expected(leaf.annotation, words) if words else "finite"


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
        finite = "finite and " if isinstance(value, float) and not math.isfinite(value) and leaf.rule.keys() & LIMITS.keys() else ""
        raise ConfigError(f"{leaf.path}={show(value)} must be {finite}{allowed(leaf)}")
