"""Seeds: the same weights on every rank, different dropout on each."""

import random
from typing import Any

import numpy as np
import torch


def seed_weights(seed: int) -> None:
    """Seed the generators that initialise weights: the same on every rank."""
    torch.manual_seed(seed)


def seed_rank(seed: int, *, rank: int, step: int = 0) -> None:
    """Seed everything that draws during training (dropout, numpy, random): different on every rank and at every ``step`` to begin at."""
    mixed = int(np.random.SeedSequence([seed, rank, step]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


def use_deterministic_kernels(wanted: bool) -> None:
    """Ask torch for deterministic kernels, or for the fast ones; operations without a deterministic kernel then raise.

    cuBLAS also needs ``CUBLAS_WORKSPACE_CONFIG``, which the launcher sets.
    """
    if torch.are_deterministic_algorithms_enabled() is not wanted:  # setting it loads torch's compiler, which takes as long as torch
        torch.use_deterministic_algorithms(wanted)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Random states of this process as plain types and tensors."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": [version, list(words), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(cached)],
    }


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore what ``rng_state`` returned."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
