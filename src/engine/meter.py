"""Running sums on the device; the only place of the engine that reads them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from src.data.base import Mixed
from src.errors import ExitCode
from src.parallel.base import Parallel


@dataclass(frozen=True)
class Reading:
    """What one host read of the meter gave; sums are over all ranks, since the last ``reset``."""

    loss: float
    accuracy: float
    images: int
    lr: float
    grad_norm: float
    loss_scale: float
    nonfinite_gradients: float
    """Gradient values that were inf or NaN in the last sampled step."""
    underflow_share: float
    """Share of its scaled gradient values that were zero or subnormal in the half format."""
    updates: int
    consecutive_skips: int
    first_bad_step: int
    stop: int
    """The exit code that a signal to any rank asked for; 0 for none."""
    step_seconds: float = field(compare=False)
    """Time from step to step since the reading before, the mean over ranks."""


class Meter:
    """Loss, hits and skipped updates of the steps since the last reset, kept on the device."""

    def __init__(self, parallel: Parallel) -> None:
        self._parallel = parallel
        self._steps = 0
        self._read_at = time.monotonic()
        device = parallel.rank.device
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss x images, hits, images
        self._skips = torch.zeros(2, dtype=torch.float64, device=device)  # in a row until now, step of the first of them
        self._updates = torch.zeros(1, dtype=torch.int64, device=device)  # real ones, ever
        self._gradients = torch.zeros(2, dtype=torch.float64, device=device)  # non-finite values, share of underflow
        self._last = torch.zeros(3, dtype=torch.float64, device=device)  # lr, gradient norm, loss scale

    def add_batch(self, loss: Tensor, logits: Tensor, labels: Tensor, *, mixed: Mixed | None = None) -> None:
        """Count one micro-batch: its mean loss (0-d), logits [B, C] and labels [B]; either label of a mixed image is a hit by its share."""
        predicted = logits.detach().argmax(dim=1)
        hits = (predicted == labels).sum()
        if mixed is not None:
            hits = torch.where(predicted == labels, 1 - mixed.share, 0).sum() + torch.where(predicted == mixed.labels, mixed.share, 0).sum()
        images = labels.numel()
        self._sums[0].add_(loss.detach(), alpha=images)
        self._sums[1].add_(hits)
        self._sums[2].add_(images)

    def add_step(self, step: int, *, moved: Tensor, updates: Tensor, lr: Tensor, grad_norm: Tensor, loss_scale: Tensor) -> None:
        """Note optimizer step number ``step`` (from 1): a real update (``moved``, bool [1]) or a skip; ``updates`` [1] counts real ones."""
        self._steps += 1
        self._updates.copy_(updates)
        in_a_row = torch.where(moved, 0.0, self._skips[0] + 1)
        self._skips[1:].copy_(torch.where(in_a_row == 1, float(step), self._skips[1]))
        self._skips[:1].copy_(in_a_row)
        self._last.copy_(torch.stack((lr, grad_norm, loss_scale)))

    def add_gradients(self, statistics: Tensor) -> None:
        """Note the gradients of a sampled step: ``statistics`` [2] as a precision mode gives them."""
        self._gradients.copy_(statistics)

    def last_was_skipped(self) -> bool:
        """Whether the last update was skipped; reads the host."""
        return bool(self._skips[0] > 0)

    def state_dict(self) -> dict[str, list[float]]:
        """This rank's sums since the last reset, and the skips in a row; reads the host."""
        return {"sums": self._sums.tolist(), "skips": self._skips.tolist()}

    def load_state_dict(self, states: Sequence[dict[str, list[float]]]) -> None:
        """Go on from what each rank had, in rank order; of another number of ranks the first takes all sums."""
        rank = self._parallel.rank
        if len(states) == rank.world_size:
            sums = states[rank.rank]["sums"]
        else:
            sums = [sum(own) if rank.is_main else 0.0 for own in zip(*(state["sums"] for state in states), strict=True)]
        self._sums.copy_(torch.tensor(sums, dtype=torch.float64))
        self._skips.copy_(torch.tensor(states[0]["skips"], dtype=torch.float64))

    def read(self, *, stop: int) -> Reading:
        """One read of everything; the same on every rank. ``stop`` is this rank's wish to end (an exit code or 0)."""
        now = time.monotonic()
        seconds = (now - self._read_at) / max(1, self._steps) / self._parallel.rank.world_size
        self._read_at, self._steps = now, 0
        own = torch.tensor([stop == ExitCode.INTERRUPTED, stop == ExitCode.TERMINATED, seconds], dtype=torch.float64)
        summed = self._parallel.sum_(torch.cat((self._sums, own.to(self._sums.device))))
        values = torch.cat((summed, self._last, self._gradients, self._skips, self._updates.to(torch.float64))).tolist()
        loss, hits, images, interrupted, terminated, seconds, lr, grad_norm, scale, bad, underflow, in_a_row, first_bad, updates = values
        return Reading(
            loss=loss / images if images else float("nan"),
            accuracy=hits / images if images else float("nan"),
            images=int(images),
            lr=lr,
            grad_norm=grad_norm,
            loss_scale=scale,
            nonfinite_gradients=bad,
            underflow_share=underflow,
            updates=int(updates),
            consecutive_skips=int(in_a_row),
            first_bad_step=int(first_bad),
            stop=ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED if interrupted else 0,
            step_seconds=seconds,
        )

    def reset(self) -> None:
        """Start the sums anew."""
        self._sums.zero_()
