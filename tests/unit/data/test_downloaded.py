"""CIFAR and Fashion-MNIST as torchvision reads them, with small files in their formats."""

import gzip
import hashlib
import logging
import pickle
import shutil
import struct
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from torchvision import datasets

from src.config.schema import CIFAR10Config, CIFAR100Config, DownloadedConfig, FashionMNISTConfig, Split
from src.data import InputNeeds, build_data
from src.data.sources import load_source
from src.errors import DataError

from .conftest import evaluation, placement

NEEDS = InputNeeds(None, min_image_size=1, default_image_size=8)
CLASSES = ["plane", "car", "cat"]
PIXELS = np.random.default_rng(0).integers(0, 256, (36, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(36) % 3
GREY = PIXELS[:, 0, :28, :28]


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


class Handler(SimpleHTTPRequestHandler):
    requests: ClassVar[list[str]] = []

    def log_message(self, *args: object) -> None:
        self.requests.append(self.path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serves ``tmp_path / "web"``; the URL."""
    (tmp_path / "web").mkdir()
    Handler.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "web"))) as httpd:
        thread = threading.Thread(target=partial(httpd.serve_forever, poll_interval=0.02))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()
        thread.join()


@pytest.fixture
def cifar(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CIFAR-10 of 30 and 6 images: its archive on the web, its class in torchvision. Gives the archive's path."""
    folder = tmp_path / "made" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rows = {"data_batch_1": slice(0, 20), "data_batch_2": slice(20, 30), "test_batch": slice(30, 36)}
    for name, part in rows.items():
        (folder / name).write_bytes(pickle.dumps({"data": PIXELS[part].reshape(-1, 3072), "labels": LABELS[part].tolist()}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": CLASSES}))
    archive = tmp_path / "web" / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, "cifar-10-batches-py")
    small = {
        "url": f"{server}cifar-10-python.tar.gz",
        "tgz_md5": md5(archive),
        "train_list": [[name, md5(folder / name)] for name in ("data_batch_1", "data_batch_2")],
        "test_list": [["test_batch", md5(folder / "test_batch")]],
        "meta": {"filename": "batches.meta", "key": "label_names", "md5": md5(folder / "batches.meta")},
    }
    monkeypatch.setattr(datasets, "CIFAR10", type("CIFAR10", (datasets.CIFAR10,), small))
    return archive


@pytest.fixture
def fashion(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Fashion-MNIST of 30 and 6 images on the web. Gives the folder of its files."""
    resources = []
    for name, rows in (("train", slice(0, 30)), ("t10k", slice(30, 36))):
        images, labels = GREY[rows], LABELS[rows].astype(np.uint8)
        for kind, header, values in (
            ("images-idx3", struct.pack(">IIII", 2051, len(images), 28, 28), images),
            ("labels-idx1", struct.pack(">II", 2049, len(labels)), labels),
        ):
            path = tmp_path / "web" / f"{name}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(header + values.tobytes()))
            resources.append((path.name, md5(path)))
    small = {"mirrors": [server], "resources": resources}
    monkeypatch.setattr(datasets, "FashionMNIST", type("FashionMNIST", (datasets.FashionMNIST,), small))
    return tmp_path / "web"


def config(kind: type[DownloadedConfig], tmp_path: Path, **options: float) -> DownloadedConfig:
    return kind(root=str(tmp_path / "data"), **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("cifar")
def test_cifar_is_downloaded_once(tmp_path: Path) -> None:
    source = load_source(config(CIFAR10Config, tmp_path))
    train, test = source.images("train"), source.images("test")
    np.testing.assert_array_equal(train.decode(range(30), size=32), PIXELS[:30])
    np.testing.assert_array_equal(test.decode(range(6), size=32), PIXELS[30:])
    assert train.labels.tolist() == LABELS[:30].tolist()
    assert (source.class_names, source.val_split, source.origin) == (CLASSES, None, str(tmp_path / "data"))
    load_source(config(CIFAR10Config, tmp_path))
    assert Handler.requests.count("/cifar-10-python.tar.gz") == 2  # torchvision asks for redirects first


@pytest.mark.usefixtures("fashion")
def test_fashion_mnist(tmp_path: Path) -> None:
    source = load_source(config(FashionMNISTConfig, tmp_path))
    np.testing.assert_array_equal(source.images("train").decode(range(30), size=28)[:, 0], GREY[:30])
    assert source.images("test").labels.tolist() == LABELS[30:].tolist()
    assert source.class_names[0] == "T-shirt/top"


@pytest.mark.usefixtures("cifar")
def test_four_ranks_download_once(tmp_path: Path) -> None:
    found: list[int] = []

    def load() -> None:
        found.append(len(load_source(config(CIFAR10Config, tmp_path)).images("train").labels))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [30] * 4
    assert Handler.requests.count("/cifar-10-python.tar.gz") == 2


@pytest.mark.usefixtures("cifar")
def test_validation_is_held_out_or_the_official_test_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fraction 0 means the test set, and the log says so."""

    def build(fraction: float) -> tuple[int, int, str]:
        chosen = config(CIFAR10Config, tmp_path, val_fraction=fraction)
        data = build_data(chosen, batch_size=2, accumulate=1, seed=0, placement=placement(), needs=NEEDS)
        for split, size in ((Split.val, data.val_size), (Split.test, 6)):
            assert evaluation(chosen, data, split=split).size == size
        return data.train_size, data.val_size, data.val_source

    caplog.set_level(logging.INFO, logger="src")
    assert build(0.1) == (27, 3, "held out")
    assert not caplog.messages
    assert build(0) == (30, 6, "test")
    assert "official test set of cifar10" in caplog.messages[0]


def test_without_a_network(tmp_path: Path, cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, the URL and the folder are named; the file put there by hand is enough."""
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(DataError) as caught:
        load_source(config(CIFAR10Config, tmp_path))
    message = str(caught.value)
    assert "data=cifar10" in message
    assert f"put cifar-10-python.tar.gz from http://127.0.0.1:9/cifar-10-python.tar.gz into {tmp_path / 'data'}" in message
    assert "\n" not in message
    shutil.copy(cifar, tmp_path / "data")
    assert len(load_source(config(CIFAR10Config, tmp_path)).images("train").labels) == 30


def test_fashion_mnist_without_a_network(tmp_path: Path, fashion: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(DataError, match=r"put train-images-idx3-ubyte\.gz, .* from http://127\.0\.0\.1:9/ into .*/data/FashionMNIST/raw"):
        load_source(config(FashionMNISTConfig, tmp_path))
    raw = tmp_path / "data" / "FashionMNIST" / "raw"
    for path in fashion.iterdir():
        shutil.copy(path, raw)
    assert len(load_source(config(FashionMNISTConfig, tmp_path)).images("train").labels) == 30


def test_damaged_files(tmp_path: Path, cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repaired from the archive while that is whole, refused when nothing is."""
    load_source(config(CIFAR10Config, tmp_path))
    batch = tmp_path / "data" / "cifar-10-batches-py" / "data_batch_2"
    batch.write_bytes(batch.read_bytes()[:-1] + b"!")
    assert len(load_source(config(CIFAR10Config, tmp_path)).images("train").labels) == 30
    batch.write_bytes(b"")
    (tmp_path / "data" / cifar.name).write_bytes(b"cut")
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(DataError, match="missing or damaged"):
        load_source(config(CIFAR10Config, tmp_path))


@pytest.mark.usefixtures("fashion")
def test_damaged_fashion_mnist(tmp_path: Path) -> None:
    """torchvision has no checksum of the unpacked files, so that reading them must notice."""
    load_source(config(FashionMNISTConfig, tmp_path))
    path = tmp_path / "data" / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match="missing or damaged"):
        load_source(config(FashionMNISTConfig, tmp_path))


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the project's root, whatever the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "CIFAR100", lambda root, train: (_ for _ in ()).throw(ValueError(root)))
    datasets.CIFAR100.filename, datasets.CIFAR100.url = "file", "url"
    with pytest.raises(DataError, match=f"its files in {Path(__file__).parents[3] / 'datasets' / 'cifar100'} "):
        load_source(CIFAR100Config())
