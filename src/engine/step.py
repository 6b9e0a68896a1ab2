"""One micro-batch and one update: where precision and parallelism meet the model."""

from torch.nn import functional as F

from src.data.base import Batch
from src.engine.state import Parts


def forward_backward(parts: Parts, batch: Batch) -> None:
    """Add one micro-batch's gradient, divided by the true length of its accumulation window."""
    with parts.parallel.accumulate(parts.wrapped, last=batch.last):
        with parts.precision.autocast():
            logits = parts.wrapped(batch.images)
            loss = F.cross_entropy(logits, batch.labels, label_smoothing=parts.config.train.label_smoothing)
        parts.precision.backward(loss / batch.window)
    parts.meter.add_batch(loss, logits, batch.labels)


def update(parts: Parts, step: int) -> None:
    """Optimizer step number ``step``: unscale, clip, update if all gradients are finite; nothing here reads the host."""
    grad_norm = parts.precision.step(parts.optimizer, clip_norm=parts.config.train.clip_norm)
    parts.optimizer.zero_grad(set_to_none=True)
    parts.meter.add_step(
        step, updates=parts.schedule.updates, lr=parts.schedule.lr, grad_norm=grad_norm, loss_scale=parts.precision.loss_scale()
    )
