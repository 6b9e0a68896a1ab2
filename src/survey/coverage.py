"""The number format that each module's matmuls and convolutions really run in, seen at PyTorch's dispatcher."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

HALF = ("float16", "bfloat16")
OUTSIDE = "(loss)"
"""The module's name of whatever runs outside the network."""

FORMULAS: dict[Any, Callable[..., int]] = flop_registry | {
    # the CPU's kernel has the same work but no formula in torch
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[aten._scaled_dot_product_flash_attention_backward],
}


@dataclass(frozen=True)
class Kind:
    """What the work of a module is told apart by; ``op`` is matmul, convolution or attention."""

    module: str
    op: str
    number_format: str
    backward: bool


@dataclass
class Coverage:
    """One training step: FLOPs by kind of work, calls of these kernels, and casts between floating-point dtypes by module."""

    flops: Counter[Kind] = field(default_factory=Counter)
    casts: Counter[str] = field(default_factory=Counter)
    kernels: int = 0

    def share(self, formats: tuple[str, ...], *, backward: bool) -> float:
        """The share of the FLOPs, 0 to 1, that ran in ``formats``; 0 if there are none."""
        work = {kind: flops for kind, flops in self.flops.items() if kind.backward is backward}
        return sum(flops for kind, flops in work.items() if kind.number_format in formats) / max(1, sum(work.values()))

    def formats(self) -> list[str]:
        """The number formats in use, the one with most FLOPs first."""
        total: Counter[str] = Counter()
        for kind, flops in self.flops.items():
            total[kind.number_format] += flops
        return [name for name, _ in total.most_common()]


def observe(model: nn.Module, step: Callable[[], object]) -> Coverage:
    """What ``step`` computes, by the modules of ``model`` that it calls, forward and backward.

    Exact for any network: an operation of the backward pass belongs to the module that ran its forward operation.
    """
    recorder = _Recorder()
    with _entered_modules(model, recorder.entered), recorder:
        step()
    return recorder.coverage


@contextmanager
def _entered_modules(model: nn.Module, entered: list[str]) -> Iterator[None]:
    """Keep the names of the modules that are being called in ``entered``, the innermost last."""
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: entered.append(name)))
        handles.append(module.register_forward_hook(lambda *_: _drop_last(entered)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _drop_last(entered: list[str]) -> None:
    entered.pop()  # a hook that returned what pop returns would replace the module's output


class _Recorder(TorchDispatchMode):
    """Sees each operation below autograd and autocast, with the dtypes that its kernel gets."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.coverage = Coverage()
        self.entered = [OUTSIDE]
        self._modules: dict[int, str] = {}  # autograd node's sequence number -> module

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        node = torch._C._current_autograd_node()
        if node is None:
            module = self.entered[-1]
            # the forward operation's node has been made already, so the next number is its own plus one
            self._modules.setdefault(torch.autograd._get_sequence_nr() - 1, module)
        else:
            module = self._modules.get(node._sequence_nr(), OUTSIDE)
        packet = func.overloadpacket
        if packet in FORMULAS:
            inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
            op = operation(str(packet))
            kind = Kind(module, op, number_format(inputs[0], op=op), backward=node is not None)
            self.coverage.flops[kind] += FORMULAS[packet](*args, **(kwargs or {}), out_val=out)
            self.coverage.kernels += 1
        elif packet is aten._to_copy and args[0].is_floating_point() and out.is_floating_point() and args[0].dtype != out.dtype:
            self.coverage.casts[module] += 1
        return out


def operation(packet: str) -> str:
    """The kind of an operation that has a FLOP formula."""
    if "conv" in packet:
        return "convolution"
    return "attention" if "attention" in packet else "matmul"


def number_format(tensor: Tensor, *, op: str) -> str:
    """What a kernel computes in on this input: its dtype, or tf32 where the GPU may round float32 to it."""
    if tensor.dtype == torch.float32 and tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (8, 0):
        allowed = torch.backends.cudnn.allow_tf32 if op == "convolution" else torch.backends.cuda.matmul.allow_tf32
        if allowed:
            return "tf32"
    return str(tensor.dtype).removeprefix("torch.")
