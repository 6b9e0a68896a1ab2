"""On a real GPU: a snapshot fits into the memory that was locked before anything was trained."""

import pytest
import torch

from src.checkpoint.host import HostMemory, to_host
from src.engine.snapshot import snapshot, state_bytes
from tests.gpu.jobs import JOB, fit, make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def tensors(value):
    """All tensors of a nest, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in tensors(item)]


@pytest.mark.parametrize("optim", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", ["amp", "o2", "o3"])
def test_the_first_snapshot_lies_in_the_block(tmp_path, precision, optim):
    o3 = {"scaler": {"dynamic": False, "init_scale": 128.0}} if precision == "o3" else {}
    parts = make(
        tmp_path / "run",
        precision={"name": precision} | o3,
        optim={"name": optim, "lr": 0.01},
        train=JOB["train"] | {"ema_decay": 0.9, "epochs": 1},
    )
    size = state_bytes(parts)
    state = fit(parts)
    memory = HostMemory(size)
    content = snapshot(parts, state)
    block = torch.frombuffer(memory._bytes, dtype=torch.uint8).data_ptr()
    copied = to_host(content, memory)
    pairs = list(zip(tensors(content), tensors(copied), strict=True))
    from_gpu = [copy for source, copy in pairs if source.is_cuda]
    assert from_gpu
    for copy in from_gpu:
        assert copy.is_pinned()
        assert block <= copy.data_ptr() < block + size
    for source, copy in pairs:
        assert torch.equal(source.cpu().to(copy.dtype), copy)
