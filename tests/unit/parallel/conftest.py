"""A group of one: no process is started; what several ranks do is the integration tests' part."""

import pytest
import torch
import torch.distributed as dist

from src.config.schema import PrecisionConfig
from src.precision import Precision, build_precision


@pytest.fixture
def group(monkeypatch):
    """A group of one over a store in this process; the arguments that ``enter`` gave are in the list."""
    original, asked = dist.init_process_group, []

    def init_process_group(backend, **kwargs):
        asked.append((backend, kwargs))
        original(backend, store=dist.HashStore(), rank=0, world_size=1)

    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    yield asked
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def fp32() -> Precision:
    """The precision mode without casts."""
    return build_precision(PrecisionConfig(name="fp32"), device=torch.device("cpu"))
