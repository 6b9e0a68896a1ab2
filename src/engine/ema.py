"""An exponential moving average of the weights, kept on the device."""

from copy import deepcopy

import torch
from torch import Tensor, nn

WARM_UP = 10
"""The decay is at most (1 + n) / (WARM_UP + n) after n updates, so that the first, random weights are soon forgotten."""


class WeightAverage:
    """In float32: ``average <- average + (1 - decay) * (weights - average)`` after each real update (Polyak and Juditsky, 1992).

    Floating-point buffers (batch statistics) are averaged alike, others copied. An update that was skipped for inf or NaN moves
    nothing, and nothing of that is known to the host. Where each rank holds a share of the weights, it averages that share.
    """

    def __init__(self, model: nn.Module, average: nn.Module, *, decay: float) -> None:
        self.model = average
        self._decay = decay
        source, target = _tensors(model), _tensors(self.model)
        self._floats = [(target[name], tensor) for name, tensor in source.items() if tensor.is_floating_point()]
        self._others = [(target[name], tensor) for name, tensor in source.items() if not tensor.is_floating_point()]
        self._updates = torch.zeros(1, dtype=torch.int64, device=self._floats[0][0].device)

    def start(self, updates: Tensor) -> None:
        """Begin at this count of real updates [1]."""
        self._updates.copy_(updates)

    @torch.no_grad()
    def update(self, updates: Tensor) -> None:
        """Follow the weights if the count of real ``updates`` [1] has moved; reads nothing."""
        moved = (updates != self._updates).to(torch.float32)
        self._updates.copy_(updates)
        decay = ((1 + updates) / (WARM_UP + updates)).clamp(max=self._decay)
        averages = [average for average, _ in self._floats]
        steps = torch._foreach_sub([tensor for _, tensor in self._floats], averages)
        torch._foreach_mul_(steps, ((1 - decay) * moved)[0])
        torch._foreach_add_(averages, steps)
        for copy, tensor in self._others:
            copy.copy_(tensor)


def copy_for_average(model: nn.Module) -> nn.Module:
    """Where an average starts: a copy of ``model`` in float32, not to be trained."""
    return deepcopy(model).float().requires_grad_(False)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())
