"""One micro-batch and one update: where precision and parallelism meet the model."""

import torch
from torch import Tensor
from torch.nn import functional as F

from src.data.base import Batch
from src.engine.state import Parts


def forward_backward(parts: Parts, batch: Batch) -> None:
    """Add one micro-batch's gradient, divided by the true length of its accumulation window."""
    with parts.parallel.accumulate(parts.wrapped, last=batch.last):
        with parts.precision.autocast():
            logits = parts.forward(batch.images, last=batch.last)
            loss = training_loss(logits, batch, label_smoothing=parts.config.train.label_smoothing)
        parts.pulse.forward_done()
        parts.precision.backward(loss / batch.window)
    parts.meter.add_batch(loss, logits, batch.labels, mixed=batch.mixed)


def training_loss(logits: Tensor, batch: Batch, *, label_smoothing: float) -> Tensor:
    """Mean cross-entropy (0-d, in nats) of logits [B, C]; a mixed image counts for both its labels, by their shares."""
    if batch.mixed is None:
        return F.cross_entropy(logits, batch.labels, label_smoothing=label_smoothing)
    own, other = (
        F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing) for labels in (batch.labels, batch.mixed.labels)
    )
    return torch.lerp(own, other, batch.mixed.share.to(own.dtype)).mean()


def update(parts: Parts, step: int, *, sample: bool) -> None:
    """Optimizer step number ``step``: clip, update if all gradients are finite; nothing here reads the host.

    ``sample``: also look at how many gradient values are non-finite or too small for the half format.
    """
    if sample:
        parts.meter.add_gradients(parts.precision.gradient_statistics(parts.optimizer))
    before = parts.schedule.updates.clone()
    grad_norm = parts.precision.step(parts.optimizer, clip_norm=parts.config.train.clip_norm)
    parts.optimizer.zero_grad(set_to_none=True)
    updates = parts.schedule.updates
    moved = updates != before
    parts.buffers.settle(moved)
    if parts.average is not None:
        parts.precision.publish()
        parts.average.update(updates, moved=moved)
    parts.meter.add_step(
        step, moved=moved, updates=updates, lr=parts.schedule.lr, grad_norm=grad_norm, loss_scale=parts.precision.loss_scale()
    )
