"""Seeded choice of images by class: the held-out part and the subset."""

import numpy as np
from torch import Tensor

from src.errors import DataError


def stratified_split(labels: Tensor, *, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Positions of the training and of the held-out images, each sorted.

    Of a class with n images ``round(fraction * n)`` are held out, but at least one stays for training.
    Raises DataError if that holds nothing out.
    """
    generator = np.random.default_rng(seed)
    held_out: list[int] = []
    for positions in _by_class(labels):
        count = min(round(fraction * len(positions)), len(positions) - 1)
        held_out += generator.permutation(positions)[:count].tolist()
    if not held_out:
        raise DataError(
            f"data.val_fraction={fraction:g} of {len(labels)} training images leaves none for validation, and the data has no"
            " validation split of its own; use a larger data.val_fraction"
        )
    kept = np.setdiff1d(np.arange(len(labels)), held_out)
    return kept.tolist(), sorted(held_out)


def balanced_subset(labels: Tensor, *, size: int, seed: int) -> list[int]:
    """Sorted positions of ``min(size, all)`` images, as equal in number over the classes as the classes allow."""
    generator = np.random.default_rng(seed)
    shuffled = [generator.permutation(positions) for positions in _by_class(labels)]
    # The k-th image of every class comes before the k+1-st of any; ties fall in a random order of the classes.
    rank_in_class = np.concatenate([np.arange(len(positions)) for positions in shuffled])
    tie = np.concatenate([np.full(len(positions), generator.random()) for positions in shuffled])
    chosen = np.concatenate(shuffled)[np.lexsort((tie, rank_in_class))[:size]]
    return sorted(chosen.tolist())


def _by_class(labels: Tensor) -> list[np.ndarray]:
    """Positions of each class that occurs, in the order of the class numbers."""
    numbers = labels.numpy()
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
