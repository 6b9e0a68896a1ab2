"""Tab completion of what Hydra can't complete: the values that a key's type allows."""

import sys

from src.config.keys import every_leaf
from src.config.values import literals
from src.launch.shell import completion_line
from src.sweep.request import App


def complete(app: App) -> bool:
    """Answer a shell's query for the value of a key; False if it is none, or has no values to list."""
    word = completion_line().rpartition(" ")[2]
    key, equals, _ = word.partition("=")
    leaf = every_leaf(app.kind).get(key) if equals else None
    values = [] if leaf is None else literals(leaf.annotation, leaf.rule.get("words", ()))
    sys.stdout.writelines(f"{key}={value}\n" for value in values if f"{key}={value}".startswith(word))
    return bool(values)
