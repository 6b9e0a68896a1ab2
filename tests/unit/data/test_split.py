"""Stratified split and balanced subset."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from sklearn.model_selection import StratifiedShuffleSplit

from src.data.split import balanced_subset, stratified_split
from src.errors import DataError

labelled = st.lists(st.integers(0, 4), min_size=2, max_size=80).map(torch.tensor)


@given(labelled, st.floats(0.05, 0.95), st.integers(0, 5))
def test_split_holds_out_its_share_of_every_class(labels: torch.Tensor, fraction: float, seed: int) -> None:
    counts = np.bincount(labels.numpy(), minlength=5)
    expected = [min(round(fraction * count), max(count - 1, 0)) for count in counts.tolist()]
    if sum(expected) == 0:
        with pytest.raises(DataError, match=r"data\.val_fraction"):
            stratified_split(labels, fraction=fraction, seed=seed)
        return
    kept, held_out = stratified_split(labels, fraction=fraction, seed=seed)
    assert sorted(kept + held_out) == list(range(len(labels)))
    assert np.bincount(labels[held_out].numpy(), minlength=5).tolist() == expected


def test_split_has_the_class_counts_of_scikit_learn() -> None:
    labels = torch.arange(200) % 4 // 3
    _, held_out = stratified_split(labels, fraction=0.2, seed=0)
    _, oracle = next(StratifiedShuffleSplit(1, test_size=0.2, random_state=0).split(labels, labels))
    assert torch.bincount(labels[held_out]).equal(torch.bincount(labels[oracle]))


def test_split_follows_its_seed() -> None:
    labels = torch.arange(100) % 10
    splits = [stratified_split(labels, fraction=0.5, seed=seed)[1] for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]


def test_no_fraction_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.val_fraction=0 of 6 training images leaves none"):
        stratified_split(torch.arange(6) % 2, fraction=0.0, seed=0)


@given(labelled, st.integers(1, 100), st.integers(0, 5))
def test_subset_is_as_balanced_as_the_classes_allow(labels: torch.Tensor, size: int, seed: int) -> None:
    chosen = balanced_subset(labels, size=size, seed=seed)
    assert len(chosen) == len(set(chosen)) == min(size, len(labels))
    available, taken = np.bincount(labels.numpy(), minlength=5), np.bincount(labels[chosen].numpy(), minlength=5)
    # A class that gives fewer images than another by more than one has no more to give.
    short = taken < taken.max() - 1
    assert (taken[short] == available[short]).all()


def test_subset_follows_its_seed() -> None:
    labels = torch.arange(100) % 10
    subsets = [balanced_subset(labels, size=20, seed=seed) for seed in (0, 0, 1)]
    assert subsets[0] == subsets[1] != subsets[2]
