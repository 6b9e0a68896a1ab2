"""An exponential moving average of the weights, kept on the device."""

from copy import deepcopy
from itertools import compress

import torch
from torch import Tensor, nn

WARM_UP = 10
"""The decay is at most (1 + n) / (WARM_UP + n) after n updates, so that the first, random weights are soon forgotten."""


class WeightAverage:
    """In float32: ``average <- average + (1 - decay) * (weights - average)`` after each real update (Polyak and Juditsky, 1992).

    Floating-point buffers (batch statistics) are averaged alike; others, and masks with infinities, are copied. An update that was
    skipped for inf or NaN moves nothing, and nothing of that is known to the host. Where each rank holds a share of the weights, it
    averages that share.
    """

    def __init__(self, model: nn.Module, average: nn.Module, *, decay: float) -> None:
        self.model = average
        self._decay = decay
        buffers = list(zip(average.buffers(), model.buffers(), strict=True))
        finite = [buffer.is_floating_point() and bool(torch.isfinite(buffer).all()) for _, buffer in buffers]
        self._copied = [pair for pair, averaged in zip(buffers, finite, strict=True) if not averaged]
        # apart, since shares of weights and whole buffers don't go into one kernel
        weights: list[tuple[Tensor, Tensor]] = list(zip(average.parameters(), model.parameters(), strict=True))
        self._averaged = [weights, list(compress(buffers, finite))]

    @torch.no_grad()
    def update(self, updates: Tensor, *, moved: Tensor) -> None:
        """Follow the weights if the last update was real (``moved``, bool [1]), the ``updates``-th [1] of all; reads nothing."""
        decay = ((1 + updates) / (WARM_UP + updates)).clamp(max=self._decay)
        share = ((1 - decay) * moved)[0]
        for pairs in filter(None, self._averaged):
            averages = [average for average, _ in pairs]
            steps = torch._foreach_sub([tensor for _, tensor in pairs], averages)
            torch._foreach_mul_(steps, share)
            torch._foreach_add_(averages, steps)
        for copy, tensor in self._copied:
            copy.copy_(tensor)


def copy_for_average(model: nn.Module) -> nn.Module:
    """Where an average starts: a copy of ``model`` in float32, not to be trained."""
    return deepcopy(model).float().requires_grad_(False)
