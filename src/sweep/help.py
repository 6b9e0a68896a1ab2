"""``--help``: every key with its value on this command line, its rule and its doc line; composed, but nothing is created."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.config.docs import Row, about_option, by_section, own_rows, rows
from src.config.keys import leaves
from src.config.runfile import plain
from src.config.schema import OPTIONS
from src.config.values import show
from src.errors import ExitCode
from src.sweep.compose import session
from src.sweep.overrides import EXPERIMENT
from src.sweep.preflight import compose_checked, read_overrides
from src.sweep.request import App

if TYPE_CHECKING:
    from rich.padding import Padding

WIDTH = 100
"""Columns at most: longer lines are hard to read, and a pipe has no width of its own."""

USAGE = """\
{about}

{program} [-m] [GROUP=OPTION ...] [KEY=VALUE ...]
  -m                 sweep: one job for each combination of the values in KEY=A,B
  --cfg job          print the composed config and stop
  --config-dir DIR   add options and experiments of your own: DIR/GROUP/OPTION.yaml
  --hydra-help       Hydra's other flags; hydra.run.dir=DIR chooses the run's directory
Tab completion in bash: eval "$({command} -sc install=bash)"

Each key: its value with the overrides typed, what is allowed, what it does [its default in the
schema, where the value is another one]. Below a group: its other options and their own keys.
"""
INHERITS = "What the checkpoint was trained with takes the place of all values but those typed.\n"


def show_help(args: Namespace, app: App, *, about: str) -> int:
    """Write the help of ``app`` with the overrides of ``args`` applied, swept ones aside, and return the exit code.

    Raises:
        ConfigError: an override is wrong.
    """
    with session(app.config_name, config_dir=args.config_dir) as composer:
        overrides = [o for o in read_overrides(args, composer) if not o.is_sweep_override()]
        values = plain(compose_checked(overrides, [], app, composer).node)
        options = {group: composer.options(group) for group in app.groups}
    text = _render(_usage(about) + INHERITS * app.inherits, values, options, app.kind)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # ``| head`` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
    return int(ExitCode.OK)


def _usage(about: str) -> str:
    typed = Path(sys.argv[0])
    name = typed.stem.removeprefix("halfstep-")
    program = f"python -m src.{name}" if typed.suffix == ".py" else typed.name
    return USAGE.format(about=about.partition(":")[0], program=program, command=f"halfstep-{name}")


def _render(usage: str, values: Mapping[str, Any], options: Mapping[str, Sequence[str]], kind: type) -> str:
    from rich.console import Console  # late: slow to import, and a refusal doesn't need it
    from rich.text import Text

    console = Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    names = {group: values[group]["name"] for group in OPTIONS}
    with console.capture() as capture:
        console.print(Text(usage))
        for section, found in by_section(rows(leaves(kind, names)), kind).items():
            title = f"{section}={names[section]}" if section in OPTIONS else section or "the whole run"
            console.print(Text(title, style="bold"))
            others = [name for name in options.get(section, ()) if name != names[section]]
            for lines in (
                [_cells(row, values) for row in found],
                [[f"{section}={name}", _about(section, name, names[section])] for name in others],
            ):
                if lines:
                    console.print(_grid(lines))
            console.print()
        if experiments := options.get(EXPERIMENT):
            console.print(Text(f"{EXPERIMENT}=null", style="bold"))
            console.print(_grid([[f"{EXPERIMENT}={name}", about_option(EXPERIMENT, name)] for name in experiments]))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _cells(row: Row, values: Mapping[str, Any]) -> list[str]:
    value = show(reduce(getitem, row.key.split("."), values))
    return [row.key, value, row.allowed, row.doc if value == row.default else f"{row.doc} [default {row.default}]"]


def _about(group: str, name: str, chosen: str) -> str:
    own = own_rows(group, name, chosen) if name in OPTIONS[group] else []
    keys = ", ".join(f"{row.key.removeprefix(f'{group}.')} {row.default}" for row in own)
    return " ".join(part for part in (about_option(group, name), f"Keys: {keys}" if keys else "") if part)


def _grid(lines: Sequence[Sequence[str]]) -> "Padding":
    """Columns of text, folded where they don't fit; the last one takes what is left."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    *narrow, _ = zip(*lines, strict=True)
    for column, most in zip(narrow, (40, 16, 22), strict=False):
        table.add_column(width=min(most, max(map(len, column))), overflow="fold")
    table.add_column(ratio=1)
    for line in lines:
        table.add_row(*map(Text, line))
    return Padding(table, (0, 0, 0, 2))
