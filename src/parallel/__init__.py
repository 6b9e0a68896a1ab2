"""Parallel modes behind one set of methods."""

from src.config.schema import DDPConfig, FSDPConfig, ParallelConfig
from src.parallel.base import Parallel
from src.parallel.ddp import DDP
from src.parallel.dp import DP
from src.parallel.single import Single
from src.runtime.rank import Rank

__all__ = ["Parallel", "build_parallel"]


def build_parallel(config: ParallelConfig, *, rank: Rank) -> Parallel:
    """The parallel mode of this run, not yet entered."""
    if isinstance(config, DDPConfig):
        return DDP(config, rank=rank)
    if isinstance(config, FSDPConfig):
        from src.parallel.fsdp import FSDP  # a second of imports that no other mode needs

        return FSDP(config, rank=rank)
    return DP(rank) if config.name == "dp" else Single(rank)
