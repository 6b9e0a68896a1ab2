"""A real sqlite store for each test: created once, which takes a second or two of migrations, then copied."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store without runs."""
    from src.tracking.mlflow_store import prepare_store

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    prepare_store(f"sqlite:///{path}")
    return path


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    """Address of a fresh copy of the store, in a folder of its own."""
    folder = tmp_path / "tracking store é"
    folder.mkdir()
    return f"sqlite:///{shutil.copy(empty_store, folder / 'mlflow.db')}"
