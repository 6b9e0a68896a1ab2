"""Which image goes into which batch of which rank: pure index arithmetic.

The order of an epoch is one permutation of all training images. Optimizer step s covers ``order[s*B : (s+1)*B]`` and
micro-batch m of rank r is chunk ``m * world_size + r`` of it, so the images of a step do not depend on the world size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from src.errors import DataError

_MAX_EVAL_BATCH = 1024


@dataclass(frozen=True)
class Span:
    """One micro-batch: ``order[start:stop]``, in a window of ``window`` micro-batches of which ``last`` marks the end."""

    start: int
    stop: int
    window: int
    last: bool


@dataclass(frozen=True)
class Plan:
    """An epoch over ``size`` images in optimizer steps of ``batch_size`` images, over all ranks and micro-batches.

    What is left after the full steps becomes one shorter window of as many whole micro-batches as it fills on every
    rank; what doesn't fill one is dropped, so no image is repeated and no rank gets a lone sample.
    """

    size: int
    batch_size: int
    accumulate: int
    world_size: int

    def __post_init__(self) -> None:
        assert self.batch_size % (self.accumulate * self.world_size) == 0, "checked with the configuration"
        if self.steps_per_epoch == 0:
            raise DataError(
                f"train.batch_size={self.batch_size} with train.accumulate={self.accumulate} needs at least {self._group} training images"
                f" but the data has {self.size}, and an incomplete micro-batch is dropped; lower train.batch_size or give more images"
            )

    @property
    def _group(self) -> int:
        """Images of one micro-batch over all ranks."""
        return self.batch_size // self.accumulate

    @property
    def _tail(self) -> int:
        """Micro-batches of the last, shorter window; 0 if there is none."""
        return self.size % self.batch_size // self._group

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return self.size // self.batch_size + (self._tail > 0)

    @property
    def images_per_epoch(self) -> int:
        """Images of an epoch over all ranks."""
        return self.size // self.batch_size * self.batch_size + self._tail * self._group

    def spans(self, rank: int, *, start_step: int = 0) -> Iterator[Span]:
        """The micro-batches of ``rank`` from optimizer step ``start_step`` on."""
        length = self._group // self.world_size
        for step in range(start_step, self.steps_per_epoch):
            window = self._tail if (step + 1) * self.batch_size > self.size else self.accumulate
            for micro in range(window):
                start = step * self.batch_size + micro * self._group + rank * length
                yield Span(start, start + length, window, last=micro == window - 1)


def epoch_generator(seed: int, *, epoch: int, purpose: int) -> torch.Generator:
    """A CPU generator of its own for each seed, epoch and purpose."""
    state = np.random.SeedSequence([seed, epoch, purpose]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def epoch_order(size: int, *, seed: int, epoch: int) -> Tensor:
    """The permutation int64 [size] of an epoch."""
    return torch.randperm(size, generator=epoch_generator(seed, epoch=epoch, purpose=0))


def eval_batch_size(batch_size: int, *, accumulate: int) -> int:
    """Images of an evaluation batch: no gradients are kept, so two training micro-batches fit; independent of the world size."""
    return min(2 * batch_size // accumulate, _MAX_EVAL_BATCH)


def eval_spans(size: int, *, batch_size: int, rank: int, world_size: int) -> Iterator[Span]:
    """The evaluation batches of ``rank``: whole batch j goes to rank j mod world size; none is padded or dropped."""
    for start in range(rank * batch_size, size, world_size * batch_size):
        yield Span(start, min(start + batch_size, size), window=1, last=True)
