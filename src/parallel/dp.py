"""torch's DataParallel: one process, the network replicated over the visible GPUs in every forward pass."""

import logging

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from src.parallel.base import Computing, Parallel
from src.parallel.probe import refuse_stuck_replicas
from src.runtime.rank import Rank

log = logging.getLogger(__name__)


class DP(Parallel):
    """Each replica computes its part of a micro-batch; weights, gradients and updates are on the first GPU."""

    name = "dp"

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.num_replicas = torch.cuda.device_count() if rank.device.type == "cuda" else 1

    def enter(self) -> None:
        """See whether the GPUs can exchange anything; on one device say that there is nothing to exchange.

        Raises ``ConfigError`` within seconds where replication would hang.
        """
        if self.num_replicas == 1:
            log.info("parallel=dp: %s is the only device, so this run computes as with parallel=single", self.rank.device)
        else:
            refuse_stuck_replicas(self.num_replicas)

    def wrap(self, model: nn.Module, precision: Computing) -> nn.Module:
        """The module that scatters images and gathers logits; on one device the bare module."""
        if self.num_replicas == 1:
            return model
        return DataParallel(AutocastInside(model, precision), device_ids=list(range(self.num_replicas)))


class AutocastInside(nn.Module):
    """``model`` in its precision mode's own region: a replica's thread keeps autocast's switch but forgets its dtype."""

    def __init__(self, model: nn.Module, precision: Computing) -> None:
        super().__init__()
        self.model = model
        self._precision = precision

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, C] of images [B, channels, H, W]."""
        with self._precision.autocast():
            logits: Tensor = self.model(images)
        return logits
