"""Pictures of a run as PNG files, drawn with matplotlib's objects: no pyplot, so no global state and no window."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.tracking.base import Point

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MAX_LABELLED_CLASSES = 20
"""Up to so many classes each cell of a confusion matrix shows its count; above, text would only be noise."""
_LABELS_ON_LARGE = 25
_BLUE, _ORANGE, _GREY = "#1f5fa8", "#d9731a", "#555555"
_DPI = 110


@dataclass(frozen=True)
class _Panel:
    title: str
    lines: dict[str, str]
    powers_of_two: bool = False
    if_any: bool = False
    """Left out while every value is 0."""


_PANELS = (
    _Panel("Loss", {"train/loss": "training", "val/loss": "validation"}),
    _Panel("Accuracy", {"train/accuracy": "training", "val/accuracy": "validation"}),
    _Panel("Learning rate", {"train/lr": ""}),
    _Panel("Loss scale", {"amp/scale": ""}, powers_of_two=True),
    _Panel("Skipped updates", {"amp/skipped_updates": ""}, if_any=True),
)


def curves(points: Sequence[Point], path: Path, *, title: str = "") -> None:
    """Loss, accuracy, learning rate and loss scale over the steps; a panel with no finite point is left out."""
    from matplotlib.figure import Figure

    finite = [point for point in points if math.isfinite(point.value)]
    names = {point.name for point in finite}
    above_zero = {point.name for point in finite if point.value}
    panels = [panel for panel in _PANELS if (above_zero if panel.if_any else names) & panel.lines.keys()]
    columns = min(2, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    figure = Figure(figsize=(5.2 * columns, 3.3 * rows), layout="constrained")
    for index, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(rows, columns, index + 1), panel, finite)
    if title:
        figure.suptitle(title, fontsize=12, parse_math=False)
    _save(figure, path)


def confusion(matrix: "NDArray[np.integer[Any]]", class_names: Sequence[str], path: Path, *, title: str = "Confusion matrix") -> None:
    """Counts ``matrix[true, predicted]``; the colour is the share of the true class, so that rare classes show as clearly."""
    import numpy as np
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    total = matrix.sum(axis=1, keepdims=True)
    share = matrix / np.maximum(total, 1)
    size = len(class_names)
    small = size <= MAX_LABELLED_CLASSES
    side = max(4.5, 2.2 + 0.36 * size) if small else 8.5
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.add_subplot()
    # a good net's mistakes are shares of a few per cent: the root makes them visible
    image = axes.imshow(share, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1), interpolation="nearest")
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    ticks = list(range(0, size, 1 if small else math.ceil(size / _LABELS_ON_LARGE)))
    labels = [_short(class_names[tick]) for tick in ticks]
    turned = any(len(label) > 3 for label in labels)
    axes.set_xticks(ticks, labels, rotation=90 if turned else 0, fontsize=8, parse_math=False)
    axes.set_yticks(ticks, labels, fontsize=8, parse_math=False)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    correct = float(np.trace(matrix)) / max(1, int(matrix.sum()))
    axes.set_title(f"{title}: {int(matrix.sum()):,} images, {correct:.2%} correct", fontsize=11)
    if small:
        _write_counts(axes, matrix, share)
    _save(figure, path)


def reliability(bins: Mapping[str, Sequence[Any]], path: Path, *, error: float, title: str = "Reliability") -> None:
    """Accuracy of each of B equal bins of confidence against the diagonal of a network that knows how sure it may be.

    ``bins`` holds ``count`` and ``accuracy`` [B], the accuracy null where there is no image; ``error`` is the calibration error.
    Below it, the share of the images in each bin.
    """
    from matplotlib.figure import Figure

    counts, size = bins["count"], len(bins["count"])
    centres = [(number + 0.5) / size for number in range(size)]
    figure = Figure(figsize=(5.3, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    upper.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle="--", label="confidence")
    upper.bar(centres, [accuracy or 0 for accuracy in bins["accuracy"]], width=0.94 / size, color=_BLUE, label="accuracy")
    upper.set_ylim(0, 1)
    upper.set_ylabel("share that is right")
    upper.legend(fontsize=9, frameon=False, loc="upper left")
    upper.set_title(f"{title}: {sum(counts):,} images, calibration error {error:.2%}", fontsize=11)
    lower.bar(centres, [count / max(1, sum(counts)) for count in counts], width=0.94 / size, color=_ORANGE)
    lower.set_xlim(0, 1)
    lower.set_xlabel("confidence")
    lower.set_ylabel("share of images")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _save(figure: "Figure", path: Path) -> None:
    with warnings.catch_warnings():
        # a class name in a script that the font lacks is drawn as boxes; that is all there is to say about it
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(path, dpi=_DPI)


def _draw_panel(axes: "Axes", panel: _Panel, points: Sequence[Point]) -> None:
    for (name, label), colour in zip(panel.lines.items(), (_BLUE, _ORANGE), strict=False):
        series = sorted((point.step, point.value) for point in points if point.name == name)
        if series:
            steps, values = zip(*series, strict=True)
            # few points, as validation has, need a mark: a single one would be an invisible line
            marker = "o" if len(series) <= 40 else ""
            style = "steps-post" if panel.powers_of_two else "default"
            axes.plot(steps, values, color=colour, label=label, linewidth=1.5, marker=marker, markersize=3.5, drawstyle=style)
    if panel.powers_of_two:
        axes.set_yscale("log", base=2)
    axes.locator_params(axis="x", integer=True)
    axes.set_title(panel.title, fontsize=11, loc="left")
    axes.set_xlabel("step", fontsize=9, color=_GREY)
    axes.tick_params(labelsize=8, colors=_GREY)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.lines) > 1:
        axes.legend(fontsize=9, frameon=False)


def _write_counts(axes: "Axes", matrix: "NDArray[np.integer[Any]]", share: "NDArray[np.floating[Any]]") -> None:
    for row, column in zip(*matrix.nonzero(), strict=True):
        colour = "white" if share[row, column] > 0.3 else "black"
        axes.text(column, row, f"{matrix[row, column]}", ha="center", va="center", fontsize=7, color=colour)


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"
