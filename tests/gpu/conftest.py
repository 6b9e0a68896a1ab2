import pytest
import torch.distributed as dist


@pytest.fixture
def group(monkeypatch):
    """NCCL in a group of one, over a store in this process."""
    original = dist.init_process_group

    def init_process_group(backend, **kwargs):
        original(backend, store=dist.HashStore(), rank=0, world_size=1, **{name: kwargs[name] for name in ("timeout", "device_id")})

    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
