"""Seeds and random states of torch, numpy and random."""

import io
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from src.runtime import seed

CPU = torch.device("cpu")


def draws():
    """Some of everything; the normal ones keep a second value in their generator."""
    return (
        torch.randn(3).tolist(),
        torch.randint(2**60, (2,)).tolist(),
        np.random.normal(),
        np.random.randint(2**31),
        random.gauss(0, 1),
        random.random(),
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**63), st.integers(0, 700))
def test_a_restored_state_draws_the_same_again(number, before):
    """Also in the middle of a generator's block of 624 words, and between the two values of a normal pair."""
    seed.seed_rank(number, rank=1)
    for _ in range(before):
        random.random()
        np.random.random()
    random.gauss(0, 1)
    np.random.normal()
    torch.randn(before + 1)
    state = seed.rng_state(CPU)
    expected = draws()
    assert draws() != expected
    seed.set_rng_state(state, CPU)
    assert draws() == expected


def test_the_state_is_plain_and_loads_safely():
    """I01: no pickled numpy arrays or tuples that need code."""
    seed.seed_rank(3, rank=0)
    file = io.BytesIO()
    torch.save(seed.rng_state(CPU), file)
    expected = draws()
    file.seek(0)
    seed.set_rng_state(torch.load(file, weights_only=True), CPU)
    assert draws() == expected


def test_ranks_draw_the_same_weights_and_different_noise():
    first = []
    for rank in range(4):
        seed.seed_weights(7)
        weights = torch.randn(5)
        seed.seed_rank(7, rank=rank)
        first.append((weights.tolist(), draws()))
    assert len({str(weights) for weights, _ in first}) == 1
    for kind in range(6):
        assert len({str(noise[kind]) for _, noise in first}) == 4
    seed.seed_rank(8, rank=0)
    assert draws() != first[0][1]
    seed.seed_rank(7, rank=0)
    assert draws() == first[0][1]


def test_rank_one_of_a_seed_is_not_rank_zero_of_the_next():
    """seed + rank would share noise between runs of neighbouring seeds."""
    seen = set()
    for number in range(4):
        for rank in range(4):
            seed.seed_rank(number, rank=rank)
            seen.add(torch.initial_seed())
    assert len(seen) == 16


def test_deterministic_kernels_are_torchs():
    try:
        seed.use_deterministic_kernels(True)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))
        seed.use_deterministic_kernels(False)
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
