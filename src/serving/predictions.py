"""Images to classes, and a table of them."""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import TextIO

import torch
from torch import nn

from src.config.check_saved import refuse_existing
from src.data.listing import ListFeed
from src.errors import ConfigError, DataError, NonFiniteError
from src.parallel import Parallel
from src.precision import Precision
from src.runtime.pulse import SILENT, Pulse

NUM_BEST = 5
NUM_SHOWN = 5
"""Unreadable files that a message names."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A class and its probability (softmax in float32)."""

    name: str
    probability: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The likeliest classes of an image, at most five, the best first; none for a file that can't be read, which has an ``error``."""

    path: str
    best: list[Guess] = field(default_factory=list)
    error: str | None = None


@torch.no_grad()
def predict(
    model: nn.Module,
    feed: ListFeed,
    paths: Sequence[str],
    *,
    class_names: Sequence[str],
    allowed_errors: int,
    precision: Precision,
    parallel: Parallel,
    pulse: Pulse = SILENT,
) -> list[Prediction]:
    """A prediction for each of ``paths``, in their order, on every rank; all ranks call it.

    Raises, on all ranks, ``DataError`` if more than ``allowed_errors`` files can't be read, and ``NonFiniteError`` for an image whose
    logits hold inf or NaN.
    """
    model.eval()
    own: list[tuple[int, Prediction]] = []
    for batch in feed.batches():
        pulse.alive()
        with precision.autocast():
            logits = model(batch.images).float()
        top = logits.softmax(dim=1).topk(min(NUM_BEST, logits.shape[1]))
        for row, shares, outputs in zip(batch.rows, top.values.tolist(), top.indices.tolist(), strict=True):
            guesses = [Guess(_name(class_names, output), share) for output, share in zip(outputs, shares, strict=True)]
            error = batch.errors.get(row)
            own.append((row, Prediction(paths[row], [] if error else guesses, error)))
    rows = dict(pair for part in parallel.gather(own) for pair in part)
    found = [rows[row] for row in range(len(paths))]
    errors = [prediction.error for prediction in found if prediction.error is not None]
    if len(errors) > allowed_errors:
        shown = "; ".join(errors[:NUM_SHOWN]) + ("; ..." if len(errors) > NUM_SHOWN else "")
        raise DataError(f"data.skip_broken={allowed_errors} but {len(errors)} images can't be read: {shown}")
    for prediction in found:
        if prediction.best and not isfinite(prediction.best[0].probability):
            raise NonFiniteError(f"the logits of {prediction.path} hold inf or NaN in precision={precision.name}; use precision=fp32")
    return found


def write(path: Path, predictions: Sequence[Prediction]) -> None:
    """A CSV file with a row an image, or JSON lines if the name ends so; whole or not at all.

    Raises ``ConfigError`` if the file has come to exist in the meantime or can't be written.
    """
    temporary = path.with_name(f".predictions.{os.getpid()}")  # path's own name may have no room for more
    try:
        with _text(temporary) as file:
            if path.suffix == ".jsonl":
                for prediction in predictions:
                    file.write(json.dumps(_record(prediction), ensure_ascii=False) + "\n")
            else:
                _write_csv(file, predictions)
            refuse_existing(path)
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"predict.output={path} can't be written ({error.strerror}); give another file") from error


def _write_csv(file: TextIO, predictions: Sequence[Prediction]) -> None:
    width = max((len(prediction.best) for prediction in predictions), default=1)
    table = csv.writer(file)
    others = [name for number in range(2, width + 1) for name in (f"class_{number}", f"probability_{number}")]
    table.writerow(["path", "class", "probability", *others, "error"])
    for prediction in predictions:
        cells = [cell for guess in prediction.best for cell in (guess.name, f"{guess.probability:.9g}")]
        table.writerow([prediction.path, *cells, *[""] * (2 * max(width, 1) - len(cells)), prediction.error or ""])


def _record(prediction: Prediction) -> dict[str, object]:
    best = asdict(prediction.best[0]) if prediction.best else {"name": None, "probability": None}
    return {
        "path": prediction.path,
        "class": best["name"],
        "probability": best["probability"],
        "top5": [{"class": guess.name, "probability": guess.probability} for guess in prediction.best],
        "error": prediction.error,
    }


def _name(class_names: Sequence[str], output: int) -> str:
    return class_names[output] if output < len(class_names) else f"unused {output}"


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise
