"""Half weights: apex's levels O2 (float32 master weights in the optimizer) and O3 (nothing but half)."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from src.precision.base import Precision
from src.precision.overrides import Override, cast_calls, choose, doors, dtype_at
from src.precision.scaling import Scaling

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


class Half(Precision):
    """The network computes in ``dtype``; with ``masters`` the optimizer updates a float32 copy of its weights.

    Master weights keep updates that are too small for half (Micikevicius et al., 2018, section 3.1). Inputs are cast at the
    network's door and logits back to float32, so the loss is float32. Batch norm stays float32 if ``keep_batchnorm``; other
    norms do with masters, where everything but matmuls and convolutions should be safe.
    """

    def __init__(
        self, name: str, *, device: torch.device, dtype: torch.dtype, scaling: Scaling, overrides: list[Override],
        masters: bool, keep_batchnorm: bool,
    ) -> None:  # fmt: skip
        super().__init__(name, device=device, dtype=dtype, scaling=scaling, overrides=overrides)
        self._masters = masters
        self._keep_batchnorm = keep_batchnorm
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []  # master, weight that computes
        self._buffers: list[tuple[Tensor, Tensor]] = []  # float32, half that computes
        self._gradients: list[Tensor] = []

    def prepare(self, model: nn.Module) -> nn.Module:
        """A half copy beside the float32 ``model``, sharing what stays float32; without masters the model itself, made half."""
        if not self._masters:
            self._make_half(model)
            return model
        working = self.evaluable(model.float())
        self._pairs = list(zip(model.parameters(), working.parameters(), strict=True))
        self._gradients = [torch.zeros_like(master) for master, _ in self._pairs]
        buffers = dict(model.named_buffers())
        for module_name, module in working.named_modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                own = buffers[f"{module_name}.{name}" if module_name else name]
                if own.dtype == buffer.dtype:
                    module.register_buffer(name, own, persistent=name not in module._non_persistent_buffers_set)
                else:
                    self._buffers.append((own, buffer))
        return working

    def evaluable(self, model: nn.Module) -> nn.Module:
        """A half copy of ``model``."""
        working = deepcopy(model)
        self._make_half(working)
        return working

    def _make_half(self, model: nn.Module) -> None:
        chosen = choose(model, self._overrides)
        modules = dict(model.named_modules())
        for name, module in modules.items():
            dtype = dtype_at(name, chosen, outside=self.dtype)
            if isinstance(module, _BatchNorm) and self._keep_batchnorm and name not in chosen:
                continue  # its kernels take half images with float32 weights and statistics
            if isinstance(module, NORMS) and self._masters and name not in chosen:
                cast_calls(module, inputs=torch.float32, outputs=dtype)
                continue
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.data = tensor.data.to(dtype)
        for name, (dtype, around) in doors(chosen, outside=self.dtype).items():
            cast_calls(modules[name], inputs=dtype, outputs=around)
        cast_calls(model, inputs=self.dtype, outputs=torch.float32)

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the masters, and the float32 buffers, into those that compute."""
        self._round_masters()
        for full, half in self._buffers:
            half.copy_(full)

    @torch.no_grad()
    def publish(self) -> None:
        """Half buffers to float32; one that was not written to keeps the digits that half can't hold."""
        for full, half in self._buffers:
            full.copy_(torch.where(full.to(half.dtype) == half, full, half.to(full.dtype)))

    def _round_masters(self) -> None:
        if self._pairs:
            torch._foreach_copy_([weight.data for _, weight in self._pairs], [master.data for master, _ in self._pairs])

    def step(self, optimizer: Optimizer, *, clip_norm: float | None) -> Tensor:
        """Gradients to float32, clip, update unless one is inf or NaN, round the masters; returns the true gradient norm (0-d)."""
        self._collect_gradients()
        norm = self._scaling.step(optimizer, clip_norm=clip_norm)
        self._round_masters()
        return norm

    @torch.no_grad()
    def _collect_gradients(self) -> None:
        targets, sources = [], []
        for (master, weight), gradient in zip(self._pairs, self._gradients, strict=True):
            if weight.grad is None:
                continue
            master.grad = gradient
            targets.append(gradient)
            sources.append(weight.grad)
            weight.grad = None
        if targets:
            torch._foreach_copy_(targets, sources)

    def gradient_statistics(self, optimizer: Optimizer) -> Tensor:
        """Non-finite values, and the share of scaled values that is zero or subnormal in ``dtype`` [2]."""
        own = [weight.grad for _, weight in self._pairs if weight.grad is not None]
        return self._scaling.gradient_statistics(own, dtype=self.dtype) if own else super().gradient_statistics(optimizer)
