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

CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Reliability:
    """How sure the network was, and how often it was right: images by the largest probability that the network gives to a class.

    Bin ``b`` of B equal ones holds b/B < confidence <= (b + 1)/B (Guo et al., "On Calibration of Modern Neural Networks", 2017).
    """

    count: Tensor
    """int64 [B]."""
    confidence: Tensor
    """Sum of the confidences in each bin, float64 [B]."""
    correct: Tensor
    """Images of each bin whose class was predicted, int64 [B]."""

    @property
    def error(self) -> float:
        """Expected calibration error: the mean over images of how far their bin's accuracy is from its confidence, 0 to 1."""
        return float((self.confidence - self.correct).abs().sum() / self.count.sum())

    def to_dict(self) -> dict[str, list[Any]]:
        """Plain types; the means of an empty bin are null."""
        counts = self.count.tolist()
        means = {"confidence": self.confidence.tolist(), "accuracy": self.correct.tolist()}
        found = {
            name: [total / count if count else None for total, count in zip(totals, counts, strict=True)] for name, totals in means.items()
        }
        return {"count": counts, **found}


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one split."""

    count: int
    loss: float
    """Mean cross-entropy in nats, without label smoothing."""
    accuracy: float
    top5: float
    """Share of images whose class is among the 5 largest logits: by definition 1 below 6 classes, where it says nothing."""
    confusion: Tensor
    """int64 [C, C]; rows are true classes, columns predictions."""
    reliability: Reliability

    def metrics(self, split: str = "val") -> dict[str, float]:
        """The metrics under the contract's names."""
        found = {"loss": self.loss, "accuracy": self.accuracy, "top5": self.top5, "ece": self.reliability.error}
        return {f"{split}/{name}": value for name, value in found.items()}

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
            "ece": self.reliability.error,
            "reliability": self.reliability.to_dict(),
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
    # seen, loss, top-5 hit, label, prediction, confidence
    table = torch.zeros(6, feed.size, dtype=torch.float64, device=parallel.rank.device)
    for batch in feed.batches():
        pulse.alive()
        with precision.autocast():
            logits = model(batch.images).float()
        label = batch.labels
        top5 = (logits.topk(min(5, num_classes)).indices == label[:, None]).any(dim=1)
        confidence = logits.double().softmax(dim=1).amax(dim=1)  # in float32 a confidence close to 1 would often be 1
        loss = F.cross_entropy(logits, label, reduction="none")
        columns = (torch.ones_like(label), loss, top5, label, logits.argmax(dim=1), confidence)
        table.index_copy_(1, batch.index, torch.stack([column.double() for column in columns]))
    model.train(training)
    seen, loss, top5_hits, labels, predictions, confidence = parallel.sum_(table).cpu()
    assert bool((seen == 1).all()), "every image of the split must be evaluated exactly once"
    cells = (labels * num_classes + predictions).long()
    confusion = torch.bincount(cells, minlength=num_classes**2).view(num_classes, num_classes)
    return Evaluation(
        count=feed.size,
        loss=float(loss.mean()),
        accuracy=float(confusion.diagonal().sum()) / feed.size,
        top5=float(top5_hits.sum()) / feed.size,
        confusion=confusion,
        reliability=measure_reliability(confidence, labels == predictions),
    )


def measure_reliability(confidence: Tensor, correct: Tensor) -> Reliability:
    """Put images with ``confidence``, float64 [N], and whether their class was predicted, bool [N], into the bins; both on the CPU."""
    edges = torch.arange(1, CALIBRATION_BINS, dtype=torch.float64) / CALIBRATION_BINS
    bins = torch.bucketize(confidence, edges)
    return Reliability(
        count=torch.bincount(bins, minlength=CALIBRATION_BINS),
        confidence=torch.bincount(bins, weights=confidence, minlength=CALIBRATION_BINS),
        correct=torch.bincount(bins[correct], minlength=CALIBRATION_BINS),
    )
