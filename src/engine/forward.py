"""The network as the training step calls it: as it is, or compiled."""

import logging
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from src.config.schema import Compile
from src.errors import ConfigError, HalfstepError

log = logging.getLogger(__name__)

RECOMPILE_LIMIT = 64
"""Variants of one function; under fsdp all blocks of a class are variants of one."""

OF_NO_USE = (
    "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled",  # precision says whether they are
    "The CUDA Graph is empty",  # torch's own first capture, of nothing
    "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed",  # torch looks at what fsdp gathered
)
"""Warnings of torch's compiler about what is meant to be so."""


class Forward:
    """Calls a network that torch.compile turns into fused kernels at the first batch; only training calls it, evaluation stays exact.

    ``mode`` is what it really does: it becomes ``none`` where compilation failed and ``fallback`` lets the run go on without.
    """

    def __init__(self, network: nn.Module, mode: Compile, *, fallback: bool) -> None:
        self.mode = mode
        self._network = network
        self._fallback = fallback
        self._call: Callable[[Tensor], Tensor] = network
        self._new_window = True
        if mode is not Compile.none:
            # All micro-batches have one size, and kernels for one size are faster than kernels for any.
            self._call = torch.compile(network, mode=mode.value.replace("_", "-"), dynamic=False)
            _fail_early()
            for message in OF_NO_USE:
                warnings.filterwarnings("ignore", message=message, category=UserWarning)

    def __call__(self, images: Tensor, *, last: bool) -> Tensor:
        """Logits [B, C] of images [B, channels, H, W]; ``last`` of an accumulation window.

        Raises:
            ConfigError: the network, or this machine, can't compile.
        """
        if self.mode is Compile.none:
            return self._call(images)
        if self._new_window:  # gradients of one window live together; then CUDA graphs may use their memory again
            torch.compiler.cudagraph_mark_step_begin()
        self._new_window = last
        try:
            return self._call(images)
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            self._give_up(error)
        return self._call(images)

    def _give_up(self, error: Exception) -> None:
        cause = getattr(error, "inner_exception", None) or error.__cause__ or error
        if isinstance(cause, HalfstepError | MemoryError | torch.OutOfMemoryError):  # it only happened to come while torch compiled
            raise cause
        reason = f"{type(cause).__name__}: {next(iter(str(cause).strip().splitlines()), '')}"
        if not self._fallback:
            raise ConfigError(
                f"train.compile={self.mode.value}: compilation failed ({reason}); set train.compile=none, or "
                "train.compile_fallback=true to go on without it"
            ) from error
        log.warning("train.compile=%s: compilation failed, so the network runs as it is (%s)", self.mode.value, reason)
        self.mode, self._call = Compile.none, self._network


def _fail_early() -> None:
    """Let what can't be compiled fail in the first forward pass; torch would leave some of it uncompiled, or fail in the backward pass."""
    import torch._dynamo
    import torch._functorch.config

    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._functorch.config.force_non_lazy_backward_lowering = True
