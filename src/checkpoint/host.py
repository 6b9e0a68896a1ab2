"""A snapshot's copy on the host: page-locked memory that is used again, and the copy itself."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes at whose multiples each tensor begins."""


def host_dtype(tensor: Tensor) -> torch.dtype:
    """What a checkpoint holds it in: float32 for a half format."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def host_bytes(tensor: Tensor) -> int:
    """What it takes there."""
    return -(-tensor.numel() * host_dtype(tensor).itemsize // ALIGNMENT) * ALIGNMENT


class HostMemory:
    """Memory for one snapshot of what is on a GPU, page-locked, so that the copies don't wait for each other.

    Locking a GiB takes about half a second: here it is one block, locked before there is anything to hold. torch makes it a power of
    two. What doesn't fit gets memory of its own, and the block is large enough after the next ``recycle``.
    """

    def __init__(self, size: int = 0) -> None:
        """Lock ``size`` bytes; where there is no memory for them, no harm is done yet."""
        self._bytes = memoryview(bytearray())
        self._used = 0
        self._grow(size)

    def recycle(self) -> None:
        """Nothing that was given out is in use any more."""
        needed, self._used = self._used, 0
        self._grow(needed)

    def empty_like(self, tensor: Tensor) -> Tensor:
        """An uninitialised tensor on the host, with a storage of its own size. Raises ``RuntimeError`` without memory."""
        begin, size, dtype = self._used, host_bytes(tensor), host_dtype(tensor)
        self._used += size
        if begin + size > len(self._bytes) or tensor.numel() == 0:
            return torch.empty(tensor.shape, dtype=dtype, pin_memory=torch.cuda.is_initialized())
        return torch.frombuffer(self._bytes, dtype=dtype, count=tensor.numel(), offset=begin).view(tensor.shape)

    def _grow(self, size: int) -> None:
        if size <= len(self._bytes):
            return
        self._bytes = memoryview(bytearray())  # the old block goes first
        with suppress(RuntimeError):
            # A run on the CPU of a machine with a GPU must not wake it, which locking would.
            block = torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_initialized())
            self._bytes = block.numpy().data


def to_host(content: Any, memory: HostMemory | None = None) -> Any:
    """The same nest of dicts and lists with every tensor on the CPU, half ones in float32.

    With ``memory`` nothing in it is shared with ``content``: tensors on a GPU are copied there all at once.
    """
    plain = _to_host(content, memory)
    if memory is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return plain


def _to_host(value: Any, memory: HostMemory | None) -> Any:
    if isinstance(value, Tensor):
        value = value.detach()
        if value.device.type == "cpu" or memory is None:
            return value.to("cpu", host_dtype(value), copy=memory is not None)
        return memory.empty_like(value).copy_(value, non_blocking=True)
    if isinstance(value, dict):
        return {key: _to_host(item, memory) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_host(item, memory) for item in value]
    return value
