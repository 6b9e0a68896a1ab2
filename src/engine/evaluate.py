"""Exact evaluation: every image counted once, for any number of ranks."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.data.base import EvalFeed
from src.parallel.base import Parallel
from src.precision.base import Precision
from src.runtime.pulse import SILENT, Pulse


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one split."""

    count: int
    loss: float
    """Mean cross-entropy in nats, without label smoothing."""
    accuracy: float
    top5: float
    """Share of images whose class is among the 5 largest logits (all of them below 6 classes)."""
    confusion: Tensor
    """int64 [C, C]; rows are true classes, columns predictions."""

    def metrics(self, split: str = "val") -> dict[str, float]:
        """The metrics under the contract's names."""
        return {f"{split}/loss": self.loss, f"{split}/accuracy": self.accuracy, f"{split}/top5": self.top5}

    def to_dict(self, class_names: list[str]) -> dict[str, Any]:
        """Plain types for a JSON file, with the accuracy of each class (null where the split has no image of it).

        Outputs of the head beyond the classes of the data are called unused.
        """
        class_names = class_names + [f"unused {output}" for output in range(len(class_names), len(self.confusion))]
        totals = self.confusion.sum(dim=1).tolist()
        hits = self.confusion.diagonal().tolist()
        return {
            "count": self.count,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "top5": self.top5,
            "per_class_accuracy": {n: h / t if t else None for n, h, t in zip(class_names, hits, totals, strict=True)},
            "class_names": class_names,
            "confusion": self.confusion.tolist(),
        }


@torch.no_grad()
def evaluate(
    model: nn.Module, feed: EvalFeed, *, num_classes: int, precision: Precision, parallel: Parallel, pulse: Pulse = SILENT
) -> Evaluation:
    """Evaluate the bare module on this rank's batches and put the ranks' results together.

    Each rank fills in its own images in a table with a column for each image of the split, and the tables are added up:
    adding zeros is exact, so the result does not depend on the number of ranks.
    """
    training = model.training
    model.eval()
    table = torch.zeros(5, feed.size, dtype=torch.float64, device=parallel.rank.device)  # seen, loss, top-5 hit, label, prediction
    for batch in feed.batches():
        pulse.alive()
        with precision.autocast():
            logits = model(batch.images).float()
        label = batch.labels
        top5 = (logits.topk(min(5, num_classes)).indices == label[:, None]).any(dim=1)
        columns = (torch.ones_like(label), F.cross_entropy(logits, label, reduction="none"), top5, label, logits.argmax(dim=1))
        table.index_copy_(1, batch.index, torch.stack([column.double() for column in columns]))
    model.train(training)
    seen, loss, top5_hits, labels, predictions = parallel.sum_(table).cpu()
    assert bool((seen == 1).all()), "every image of the split must be evaluated exactly once"
    cells = (labels * num_classes + predictions).long()
    confusion = torch.bincount(cells, minlength=num_classes**2).view(num_classes, num_classes)
    return Evaluation(
        count=feed.size,
        loss=float(loss.mean()),
        accuracy=float(confusion.diagonal().sum()) / feed.size,
        top5=float(top5_hits.sum()) / feed.size,
        confusion=confusion,
    )
