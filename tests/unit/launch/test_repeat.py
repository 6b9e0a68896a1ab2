"""A run repeated by hand, up to the point where it would start."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src.config import runfile
from src.config.runfile import to_config
from src.config.schema import Config, EvaluateConfig, TrackingConfig
from src.launch import job
from src.launch.repeat import repeat
from src.launch.result import JobResult


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, Path]]:
    started: list[tuple[Config, Path]] = []

    def run_job(config: Config, *, run_dir: Path, overrides: list[str]) -> JobResult:
        started.append((config, run_dir))
        return JobResult("FINISHED", 7, None, None, run_dir)

    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setattr(job, "run_job", run_job)
    return started


@pytest.fixture
def save(tmp_path: Path) -> Callable[[Config], Path]:
    def save(config: Config) -> Path:
        path = tmp_path / "run é" / "run.yaml"
        path.parent.mkdir()
        runfile.save(config, path)
        return path

    return save


@pytest.mark.parametrize(
    "config", [to_config({"seed": 3, "device": "cpu", "parallel": {"name": "ddp"}}), to_config({"checkpoint": "/x.pt"}, EvaluateConfig)]
)
def test_the_same_run_beside_the_old_one_without_a_tracker(
    jobs: list[tuple[Config, Path]], save: Callable[[Config], Path], config: Config
) -> None:
    path = save(config)
    assert [repeat(path), repeat(path)] == [7, 7]
    folder = path.parent.parent
    assert [run_dir for _, run_dir in jobs] == [folder / "run é-repeat", folder / "run é-repeat-1"]
    for repeated, _ in jobs:
        assert type(repeated) is type(config)
        assert repeated.tracking == TrackingConfig(name="none")
        repeated.tracking = config.tracking
        assert repeated == config
    assert runfile.load(path, type(config)) == config


@pytest.mark.parametrize("content", [None, "- a list", "seed: 1\nsede: 2\n", "seed: -1\n"])
def test_what_is_no_run_is_refused(jobs: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None) -> None:
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_text(content)
    before = list(tmp_path.parent.iterdir())
    assert repeat(path) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not jobs
    assert list(tmp_path.parent.iterdir()) == before
