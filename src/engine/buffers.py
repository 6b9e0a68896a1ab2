"""Buffers that the forward pass writes, such as batch statistics: a skipped update leaves them where they were."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Group:
    """The buffers of one dtype, and what they were after the last update: flat, so that a step costs a few kernels for all of them."""

    buffers: list[Tensor]
    kept: Tensor
    views: list[Tensor]
    """``kept`` in the buffers' shapes."""


class HeldBuffers:
    """All buffers of a network.

    A forward pass that overflows leaves inf or NaN in batch norm's running statistics, where they would stay for good: the gate of
    the weights covers them too. Nothing here reads the host.
    """

    def __init__(self, network: nn.Module) -> None:
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in filter(_can_be_written, network.buffers()):
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        self._groups = [_group(buffers) for buffers in by_dtype.values()]

    @torch.no_grad()
    def hold(self) -> None:
        """Take the buffers as they are now for those of the last update."""
        for group in self._groups:
            torch._foreach_copy_(group.views, group.buffers)

    @torch.no_grad()
    def settle(self, moved: Tensor) -> None:
        """After an optimizer step: keep the buffers if the update was real (``moved``, bool [1]), else put them back."""
        for group in self._groups:
            now = torch.cat([buffer.reshape(-1) for buffer in group.buffers])
            torch.where(moved, now, group.kept, out=group.kept)
            torch._foreach_copy_(group.buffers, group.views)


def _can_be_written(buffer: Tensor) -> bool:
    """An expanded tensor, several elements in one place, can't: it is a constant."""
    return all(stride > 0 or size <= 1 for stride, size in zip(buffer.stride(), buffer.shape, strict=True))


def _group(buffers: list[Tensor]) -> _Group:
    kept = torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
    parts = kept.split([buffer.numel() for buffer in buffers])
    return _Group(buffers, kept, [part.view(buffer.shape) for part, buffer in zip(parts, buffers, strict=True)])
