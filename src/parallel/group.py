"""A group of ranks, one process a device: joining, leaving and the exchanges that every such mode needs."""

from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from src.config.schema import Backend, GroupConfig
from src.parallel.base import Parallel
from src.runtime.rank import Rank

T = TypeVar("T")

WATCH_SECONDS = 120
"""Time for the launcher to find and end a hung group before its collectives give up, which could only blame a healthy rank."""


class Group(Parallel):
    """torch.distributed's default group."""

    def __init__(self, config: GroupConfig, *, rank: Rank) -> None:
        super().__init__(rank)
        self._timeout = timedelta(seconds=config.timeout_seconds + WATCH_SECONDS)
        if config.backend == Backend.auto:
            self.backend = "nccl" if rank.device.type == "cuda" else "gloo"
        else:
            self.backend = config.backend.name

    def enter(self) -> None:
        """Join the group over torchrun's rendezvous store."""
        device = self.rank.device if self.rank.device.type == "cuda" else None
        if device is not None:
            torch.cuda.set_device(device)
        dist.init_process_group(self.backend, timeout=self._timeout, device_id=device)

    def exit(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()

    def sync_buffers(self, model: nn.Module) -> None:
        """Average floating-point buffers over ranks, in one message; in float64, so that what is equal on all ranks stays what it is."""
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        if not buffers:
            return
        flat = torch.cat([buffer.reshape(-1).to(torch.float64) for buffer in buffers])
        flat = self.sum_(flat) / self.rank.world_size
        for buffer, mean in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(mean.view_as(buffer))

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        dist.all_reduce(tensor)
        return tensor

    def gather(self, value: T) -> list[T]:
        """Every rank's value, pickled between our own ranks."""
        values: list[Any] = [None] * self.rank.world_size
        dist.all_gather_object(values, value)
        return values
