"""The real commands, as a user types them, in a directory that is not the project's and against a store of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]

TINY = (
    "data=synthetic",
    "data.size=64",
    "data.val_size=30",
    "data.classes=4",
    "data.pixels=8",
    "train.epochs=2",
    "train.batch_size=16",
    "train.log_every=1",
    "optim.lr=0.01",
    "save.background=false",  # else a checkpoint may be left out when the next one comes too soon
)
"""A run of 8 steps on the default net."""


@dataclass
class Finished:
    """One command that has ended."""

    code: int
    out: str
    err: str
    run_dir: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "result.json").read_text())

    def history(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a metric, from the journal."""
        points = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        return [(p["step"], p["value"]) for p in points if p["name"] == name]

    def ok(self) -> "Finished":
        assert self.code == 0, f"exit {self.code}\n{self.out}\n{self.err}"
        return self


class Shell:
    """Runs commands in one directory with one MLflow store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.uri = f"sqlite:///{directory / 'store.db'}"
        self.env = dict(os.environ)
        # One thread a process: tests share the cores, and threads that wait for a core make tiny kernels a hundred times slower.
        paths = os.pathsep.join(path for path in (str(PROJECT), os.environ.get("PYTHONPATH")) if path)
        self.env |= {"PYTHONPATH": paths, "MLFLOW_TRACKING_URI": self.uri, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}

    def start(self, module: str, *args: str, **env: str) -> subprocess.Popen[str]:
        """In a process group of its own, as a terminal does."""
        return subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=self.directory,
            env={name: value for name, value in (self.env | env).items() if value},  # empty: not set at all
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, module: str, *args: str, name: str, timeout: float = 240, **env: str) -> Finished:
        """Run to the end in the run directory ``name``."""
        process = self.start(module, *args, f"hydra.run.dir={name}", **env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"still running after {timeout} s\n{out}\n{err}") from None
        return Finished(process.returncode, out, err, self.directory / name)

    def client(self):
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri)

    def runs(self):
        """All runs of the store, oldest first."""
        client = self.client()
        experiments = [e.experiment_id for e in client.search_experiments()]
        return sorted(client.search_runs(experiments), key=lambda run: run.info.start_time)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("work dir é"))


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a folder of small JPEG images, one colour a class."""
    import numpy as np
    from PIL import Image

    def make(*, classes: int = 3, train: int = 12, val: int = 5) -> Path:
        root = tmp_path_factory.mktemp("images")
        random = np.random.default_rng(0)
        for split, count in (("train", train), ("val", val)):
            for label in range(classes):
                folder = root / split / f"class_{label}"
                folder.mkdir(parents=True)
                for number in range(count):
                    pixels = random.integers(0, 60, (16, 16, 3)) + 60 * np.eye(3)[label % 3] * 2
                    Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.jpg")
        return root

    return make
