"""The doctor's tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console

from src.survey.console import show_line, show_table
from src.survey.coverage import Coverage
from src.survey.formats import GAIN, probe_side, support
from src.survey.machine import ModeReport, ParallelReport

MAX_ROWS = 40
"""Modules are put together by the front of their names until no more rows than this are left."""


@dataclass(frozen=True)
class Row:
    """Modules under one name: FLOPs of the forward and backward pass in one number format, and casts."""

    module: str
    op: str
    number_format: str
    flops: int
    casts: int


def show_formats(console: Console, names: Sequence[str], speeds: Mapping[str, float], device: torch.device) -> None:
    """Speed of a matmul by number format."""
    unit, per = ("TFLOP/s", 1e12) if device.type == "cuda" else ("GFLOP/s", 1e9)
    rows = []
    for name in names:
        measured = (f"{speeds[name] / per:.3g}", times(speeds[name] / speeds["float32"])) if name in speeds else ("fails", "-")
        rows.append((name, *measured, support(name, device).why))
    side = probe_side(device)
    show_line(console, f"A matmul of two {side} x {side} matrices, measured now:")
    show_table(console, ("format", unit, "against float32", "hardware"), rows, right=(unit, "against float32"))


def show_modes(console: Console, modes: Sequence[ModeReport]) -> None:
    """Which precision modes work, and which are fast."""
    rows = [(mode.name, "yes" if mode.works else "no", mode.computes_in, verdict(mode), mode.why) for mode in modes]
    show_table(console, ("mode", "works", "computes in", "fast", "why"), rows)


def verdict(mode: ModeReport) -> str:
    """Whether a mode is fast, in a word and a number."""
    if mode.speed is None:
        return "-"
    if mode.computes_in == "float32":
        return "as float32"
    return f"{'yes' if mode.fast else 'no'}, {times(mode.speed)}"


def show_parallel(console: Console, modes: Sequence[ParallelReport]) -> None:
    """Ranks and collective library of each parallel mode."""
    show_table(console, ("parallel", "ranks", "collectives"), [(mode.name, str(mode.ranks), mode.backend) for mode in modes])


def half_sentence(speeds: Mapping[str, float], device: torch.device) -> str:
    """The answer to "does my card support fp16 well?"."""
    if "float16" not in speeds:
        return "float16 does not work on this device."
    ratio = speeds["float16"] / speeds["float32"]
    well = "supports float16 well" if ratio >= GAIN else "gains nothing from float16"
    return (
        f"This {'card' if device.type == 'cuda' else 'CPU'} {well}: {times(ratio)} the speed of float32. {support('float16', device).why}."
    )


def show_coverage(console: Console, coverage: Coverage, *, images: int, expected: str) -> None:
    """Number format, work and casts by module; modules that do not compute in ``expected`` are listed one by one."""
    total = sum(coverage.flops.values()) / images
    unit, per = ("GFLOP", 1e9) if total >= 1e9 else ("MFLOP", 1e6)
    columns = ("module", "op", "dtype", f"{unit} an image", "casts a step")
    texts = []
    for row in coverage_rows(coverage, expected=expected):
        work = f"{row.flops / images / per:.3g}" if row.flops else ""
        texts.append((row.module, row.op, row.number_format, work, str(row.casts or "")))
    texts.append(("total", "", "", f"{total / per:.3g}", str(sum(coverage.casts.values()))))
    show_table(console, columns, texts, right=columns[3:])


def coverage_rows(coverage: Coverage, *, expected: str, limit: int = MAX_ROWS) -> list[Row]:
    """Rows of as many name parts as fit into ``limit``; in execution order."""
    names = [*(kind.module for kind in coverage.flops), *coverage.casts]
    depths = range(max((name.count(".") for name in names), default=0) + 1, 0, -1)
    for depth in depths:
        rows = _rows(coverage, depth, expected)
        if len(rows) <= limit:
            break
    return rows


def _rows(coverage: Coverage, depth: int, expected: str) -> list[Row]:
    flops: Counter[tuple[str, str, str]] = Counter()
    for kind, count in coverage.flops.items():
        name = kind.module if kind.number_format != expected else _front(kind.module, depth)
        flops[(name, kind.op, kind.number_format)] += count
    listed = {name for name, _, _ in flops}
    casts: Counter[str] = Counter()
    for module, count in coverage.casts.items():
        casts[module if module in listed else _front(module, depth)] += count
    rows = [Row(_title(name), op, number_format, count, casts.pop(name, 0)) for (name, op, number_format), count in flops.items()]
    return rows + [Row(_title(name), "only casts", "", 0, count) for name, count in casts.items()]


def _front(name: str, depth: int) -> str:
    return ".".join(name.split(".")[:depth])


def _title(name: str) -> str:
    return name if name else "(the network's own code)"


def times(ratio: float) -> str:
    """A ratio of speeds as people read it."""
    return f"{ratio:.2g}x" if ratio < 10 else f"{ratio:.0f}x"
