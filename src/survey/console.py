"""Tables and sentences of the doctor, on a terminal or in a file; no torch here."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 160
"""Columns of a table where the output is not a terminal."""


def widen(console: Console) -> None:
    """Give tables room where the output is not a terminal."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH


def show_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A plain table; the columns named in ``right`` are aligned to the right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table, soft_wrap=False)
    console.print()


def show_line(console: Console, text: str) -> None:
    """One sentence, wrapped at the terminal's edge only."""
    console.print(Text(text), soft_wrap=True)
