"""Every option as rows of a table, from the schema: for ``--help`` and for ``docs/options.md`` (``python -m src.config.docs``)."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from src.config.keys import Leaf, choosable, leaves, option_leaves, section_kind
from src.config.ranges import allowed
from src.config.schema import JOBS, OPTIONS, Config, DoctorConfig
from src.config.values import show

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"

INTRODUCTION = """\
# Options
Every key of the command line, generated from `src/config/schema.py` by `python -m src.config.docs`. Set one with `KEY=VALUE`, choose an
option of a group with `GROUP=OPTION`; `python -m src.train --help` shows the values that a command line leads to. A default of the main job
that stands in `conf/config.yaml` instead is not shown here.
"""


@dataclass(frozen=True)
class Row:
    """One key in words."""

    key: str
    default: str
    allowed: str
    doc: str


def rows(options: Mapping[str, Leaf]) -> list[Row]:
    """A row for each of ``options`` that can be set."""
    return [_row(options[path]) for path in choosable(options)]


def _row(leaf: Leaf) -> Row:
    return Row(leaf.path, show(leaf.default), allowed(leaf), leaf.rule["doc"])


def by_section(found: Iterable[Row], kind: type) -> dict[str, list[Row]]:
    """Section of ``kind`` (empty for its single values) -> its rows, in the order of the schema."""
    names = [field.name for field in fields(kind)]
    parts: dict[str, list[Row]] = {name: [] for name in ["", *names] if not name or _is_section(kind, name)}
    for row in found:
        parts[row.key.partition(".")[0] if "." in row.key else ""].append(row)
    return parts


def _is_section(kind: type, name: str) -> bool:
    return name in OPTIONS or section_kind(kind, name, {}, top=False) is not None


def own_rows(group: str, name: str, chosen: str) -> list[Row]:
    """The rows in which option ``name`` of ``group`` differs from option ``chosen``."""
    other = {(row.key, row.default) for row in rows(option_leaves(group, chosen))}
    return [row for row in rows(option_leaves(group, name)) if (row.key, row.default) not in other]


def about_option(group: str, name: str) -> str:
    """The first comment of the option's file in ``conf/``, below Hydra's ``@package``; empty for an option of the user's own."""
    path = CONF_DIR / group / f"{name}.yaml"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ") and not line.startswith("# @")), "")


def markdown_tables() -> str:
    """The whole of ``docs/options.md``."""
    first = {group: next(iter(options)) for group, options in OPTIONS.items()}
    parts = [INTRODUCTION]
    for section, found in by_section(rows(leaves(Config, first)), Config).items():
        if section in OPTIONS:
            parts.append(_group_tables(section))
        else:
            parts.append(f"## {f'`{section}`' if section else 'Whole run'}\n" + _table(found))
    base = {row.key for row in rows(leaves(Config, first))}
    for command, kind in (JOBS | {"doctor": DoctorConfig}).items():
        if own := [row for row in rows(leaves(kind, first)) if row.key not in base]:
            parts.append(f"## Only `python -m src.{command}`\n" + _table(own))
    return "\n".join(parts)


def _group_tables(group: str) -> str:
    """The options of a group and their keys; a key that several options declare alike is one row."""
    owners: dict[Row, list[str]] = {}
    for name in OPTIONS[group]:
        for row in rows(option_leaves(group, name)):
            owners.setdefault(row, []).append(name)
    lines = [f"## Group `{group}`", f"| `{group}=` | what it is |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(about_option(group, name))} |" for name in OPTIONS[group]]
    only = {row: ", ".join(f"`{name}`" for name in names) for row, names in owners.items() if len(names) < len(OPTIONS[group])}
    return "\n".join(lines) + "\n\n" + _table(owners, only)


def _table(found: Iterable[Row], only: Mapping[Row, str] | None = None) -> str:
    """``only`` tells which options have a row that not all have."""
    listed = list(found)
    keys = [row.key for row in listed]
    lines = ["| key | default | allowed | what it is |", "|---|---|---|---|"]
    for row in sorted(listed, key=lambda row: keys.index(row.key)):
        suffix = f" (only {only[row]})" if only and row in only else ""
        lines.append(f"| `{row.key}` | `{row.default}` | {_cell(row.allowed)} | {_cell(row.doc)}{suffix} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(markdown_tables())
