"""torch's DistributedDataParallel: one process a device, gradients averaged while the backward pass runs."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from src.config.schema import CommHook, DDPConfig
from src.errors import ConfigError
from src.parallel.base import Computing
from src.parallel.group import Group
from src.runtime.rank import Rank

_NO_BUFFER_SYNC_IN_FORWARD: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in signature(DistributedDataParallel.__init__).parameters
    else {"broadcast_buffers": False}  # before torch 2.14
)
_HOOKS = {CommHook.fp16: default_hooks.fp16_compress_hook, CommHook.bf16: default_hooks.bf16_compress_hook}


class DDP(Group):
    """Every rank holds the whole model and sees its share of each global batch."""

    name = "ddp"

    def __init__(self, config: DDPConfig, *, rank: Rank) -> None:
        super().__init__(config, rank=rank)
        self._config = config
        self._gradients_seen = config.find_unused_parameters
        self._graph_seen = not config.static_graph

    def wrap(self, model: nn.Module, precision: Computing) -> nn.Module:
        """Broadcast rank 0's weights and hook the gradient exchange into backward.

        Buffers are not broadcast in every forward pass: batch norm trains on local statistics, ``sync_buffers`` averages the
        running ones before they are used.
        """
        if self._config.sync_batchnorm and self.rank.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.rank.device] if self.rank.device.type == "cuda" else None,
            **_NO_BUFFER_SYNC_IN_FORWARD,
            find_unused_parameters=self._config.find_unused_parameters,
            gradient_as_bucket_view=self._config.gradient_as_bucket_view,
            static_graph=self._config.static_graph,
            bucket_cap_mb=self._config.bucket_cap_mb,
        )
        # A convolution over one channel has two equally good layouts, and autograd may pick the other one; the copy is tiny.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        if self._config.comm_hook != CommHook.none:
            wrapped.register_comm_hook(None, _HOOKS[self._config.comm_hook])
        return wrapped

    def accumulate(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
        """Hold the exchange back until the last micro-batch of the window."""
        assert isinstance(wrapped, DistributedDataParallel)
        if not last and self._graph_seen:
            return wrapped.no_sync()
        self._graph_seen = True  # torch can't record a static graph in a backward without exchange; one exchange more changes no sum
        if not last:
            return nullcontext()
        return nullcontext() if self._gradients_seen else self._first_exchange(wrapped)

    @contextmanager
    def _first_exchange(self, wrapped: DistributedDataParallel) -> Iterator[None]:
        # Without a gradient for each parameter the exchange never completes, which torch reports a step later and without names.
        yield
        self._gradients_seen = True
        unused = [name for name, parameter in wrapped.module.named_parameters() if parameter.requires_grad and parameter.grad is None]
        if unused:
            shown = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
            raise ConfigError(
                f"the loss does not depend on these parameters: {shown}; remove them from the network or set "
                "parallel.find_unused_parameters=true"
            )
