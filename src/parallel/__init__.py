"""Parallel modes behind one protocol."""

from src.config.schema import DDPConfig, ParallelConfig
from src.parallel.base import Parallel
from src.parallel.ddp import DDP
from src.parallel.single import Single
from src.runtime.rank import Rank

__all__ = ["Parallel", "build_parallel"]


def build_parallel(config: ParallelConfig, *, rank: Rank) -> Parallel:
    """The parallel mode of this run, not yet entered."""
    return DDP(config, rank=rank) if isinstance(config, DDPConfig) else Single(rank)
