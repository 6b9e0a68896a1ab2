"""Two runs held against each other, bit by bit: checkpoints' contents and metric points. Pure functions."""

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from src.tracking.base import Point

SPEED = ("perf/",)
"""Beginnings of the metrics that measure time."""
NOT_COMPARED = {"config": "says how the process was started", "state/train_seconds": "time", "state/train_images": "counts for speed"}
"""Parts of a checkpoint that two equal runs need not share, and why."""


@dataclass(frozen=True)
class Divergence:
    """Where two runs are not the same."""

    step: int
    part: str
    """Key of the checkpoint, or ``metric points``."""
    place: str
    """Keys below it, joined by slashes; empty for the part itself."""
    how: str

    def __str__(self) -> str:
        return f"step {self.step}, {'/'.join(filter(None, (self.part, self.place)))}: {self.how}"


def compare_payloads(step: int, one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Divergence]:
    """The first difference in each part of two checkpoints of ``step`` that differs, in the order of the parts."""
    found = []
    for part in dict.fromkeys((*one, *other)):
        if part in NOT_COMPARED:
            continue
        if part not in one or part not in other:
            found.append(Divergence(step, part, "", _missing(part in one)))
        elif (difference := next(_differences(one[part], other[part], part), None)) is not None:
            place, how = difference
            found.append(Divergence(step, part, place.removeprefix(part).removeprefix("/"), how))
    return found


def compare_points(one: Sequence[Point], other: Sequence[Point], *, after: int) -> list[Divergence]:
    """Differences between the metric points of two runs later than step ``after``, by step; speed is left out."""
    values = [{(point.step, point.name): point.value for point in points if counts(point, after=after)} for points in (one, other)]
    found = []
    for step, name in sorted(values[0].keys() | values[1].keys()):
        here, there = (known.get((step, name)) for known in values)
        if here is None or there is None:
            found.append(Divergence(step, "metric points", name, _missing(here is not None)))
        elif not _same_float(here, there):
            found.append(Divergence(step, "metric points", name, f"{here!r} and {there!r}"))
    return found


def counts(point: Point, *, after: int) -> bool:
    """Whether a point is one that must be equal."""
    return point.step > after and not point.name.startswith(SPEED)


def content(payload: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """What ``compare_payloads`` compares, by part: how many tensors, how many values in them, how many other values."""
    return {part: _count(value, part) for part, value in payload.items() if part not in NOT_COMPARED}


def _differences(one: Any, other: Any, place: str) -> Iterator[tuple[str, str]]:
    """Place and kind of each difference in two nests of dicts, lists, tensors and plain values."""
    if place in NOT_COMPARED or _is_speed(place):
        return
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            if _is_speed(where := f"{place}/{key}"):
                continue
            if key in one and key in other:
                yield from _differences(one[key], other[key], where)
            else:
                yield where, _missing(key in one)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield place, f"{len(one)} and {len(other)} entries"
            return
        for number, (here, there) in enumerate(zip(one, other, strict=True)):
            yield from _differences(here, there, f"{place}/{number}")
    elif isinstance(one, Tensor) and isinstance(other, Tensor):
        if (how := _tensor_difference(one, other)) is not None:
            yield place, how
    elif isinstance(one, float) and isinstance(other, float):
        if not _same_float(one, other):
            yield place, f"{one!r} and {other!r}"
    elif type(one) is not type(other) or one != other:
        yield place, f"{one!r:.60} and {other!r:.60}"


def _is_speed(place: str) -> bool:
    return place.startswith(tuple(f"state/metrics/{name}" for name in SPEED))


def _tensor_difference(one: Tensor, other: Tensor) -> str | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype} {list(one.shape)} and {other.dtype} {list(other.shape)}"
    # bytes and not values: NaN equals NaN here, and 0 is not -0
    differ = (_bytes(one) != _bytes(other)).any(dim=1)
    if not bool(differ.any()):
        return None
    largest = (one.double() - other.double()).abs().max()
    return f"{int(differ.sum()):,} of {one.numel():,} values differ, by up to {float(largest):.3g}"


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1, 1).view(torch.uint8)


def _same_float(one: float, other: float) -> bool:
    return struct.pack("<d", one) == struct.pack("<d", other) or (one != one and other != other)


def _missing(in_first: bool) -> str:
    return f"only in the run that {'went straight on' if in_first else 'was resumed'}"


def _count(value: Any, place: str) -> Counter[str]:
    if place in NOT_COMPARED or _is_speed(place):
        return Counter()
    if isinstance(value, Tensor):
        return Counter(tensors=1, values=value.numel())
    if isinstance(value, Mapping | list | tuple):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        return sum((_count(item, f"{place}/{key}") for key, item in entries), Counter())
    return Counter(others=1)
