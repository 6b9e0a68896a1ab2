"""Traceability of a run."""

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from src.tracking import system

IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "--quiet", "--initial-branch=topic/one")
    (tmp_path / "a.txt").write_text("one")
    _git(tmp_path, "add", "a.txt")
    return tmp_path


def test_git_tags(repository: Path) -> None:
    assert system.git_tags(repository) == {}
    _git(repository, *IDENTITY, "commit", "--quiet", "--message", "first", "--no-verify")
    commit = _git(repository, "rev-parse", "HEAD")
    (repository / "untracked.txt").write_text("x")
    assert system.git_tags(repository) == {"git.commit": commit, "git.branch": "topic/one", "git.dirty": "false"}
    (repository / "a.txt").write_text("two")
    assert system.git_tags(repository)["git.dirty"] == "true"


def test_no_repository_and_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert system.git_tags(tmp_path) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert system.git_tags(tmp_path) == {}


def test_run_tags_name_versions_and_machine() -> None:
    tags = system.run_tags()
    assert tags["version.python"] == platform.python_version()
    assert tags["version.torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"version.torchvision", "version.hydra-core", "version.omegaconf", "version.mlflow"} <= tags.keys()
    assert tags["host.name"] == platform.node()
    assert all(tags[key] for key in ("host.os", "host.cpu"))


def test_missing_package_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_PACKAGES", ("torch", "no-such-package"))
    assert "version.no-such-package" not in system.run_tags()
