"""Peak memory of one job in a process that runs several."""

import sys

import pytest
import torch

from src.runtime import memory

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_is_this_jobs_own():
    memory.reset_peak(CPU)
    before = memory.peak_bytes(CPU)
    if before > 2**30:
        pytest.skip("what this process has freed would hold the block without a new peak")
    block = torch.ones(64 * 2**20 // 4)
    with_block = memory.peak_bytes(CPU)
    assert 48 * 2**20 < with_block - before < 128 * 2**20
    del block
    memory.reset_peak(CPU)
    assert memory.peak_bytes(CPU) < with_block - 32 * 2**20
