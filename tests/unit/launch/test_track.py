"""A run in its trackers: real sqlite stores and event files, filled from the journal of a run that nobody trains."""

import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from src.config import runfile
from src.config.schema import Config, EvaluateConfig, Split, TrackingConfig
from src.errors import TryAgainError
from src.launch import track
from src.launch.locate import PROJECT_ROOT, store_uri
from src.launch.track import RunTracking
from src.tracking.base import Point
from src.tracking.journal import Journal
from src.tracking.mlflow_store import prepare_store
from src.tracking.uri import artifact_location

NO_REF = {"uri": None, "experiment_id": None, "run_id": None}


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    prepare_store(f"sqlite:///{path}")
    return path


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> Path:
    """A store that is there."""
    (tmp_path / "store").mkdir()
    return Path(shutil.copy(empty_store, tmp_path / "store" / "mlflow.db"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def _config(name: str, store: Path, *, kind: Callable[..., Config] = Config, **more: Any) -> Config:
    return kind(name="a-run", tracking=TrackingConfig(name=name, uri=f"sqlite:///{store}", **more))


def _opened(config: Config, run_dir: Path, resume_run_id: str | None = None) -> RunTracking:
    runfile.save(config, run_dir / "run.yaml")
    tracking = RunTracking(config, run_dir=run_dir)
    tracking.open(overrides=["optim.lr=0.1"], resume_run_id=resume_run_id)
    tracking.wait()
    return tracking


def _train(run_dir: Path, steps: range) -> None:
    Journal(run_dir / "metrics.jsonl").write([Point("train/loss", 1 / step, step, 1.7e9 + step) for step in steps])


def _close(tracking: RunTracking, **changes: Any) -> dict[str, Any]:
    result = {
        "status": "FINISHED", "reason": None, "exit_code": 0, "objective": {"name": "val/accuracy", "value": 0.9}, "precision": None,
        "device": None, "effective": {}, "tracking": tracking.ref,
    } | changes  # fmt: skip
    assert tracking.close(result["status"], result=result, load_best=None) == ()
    return result


def _scalars(run_dir: Path, name: str = "train/loss") -> list[int]:
    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return [event.step for event in events.Scalars(name)]


def _history(store: Path, run_id: str | None, name: str = "train/loss") -> list[int]:
    return [metric.step for metric in MlflowClient(f"sqlite:///{store}").get_metric_history(str(run_id), name)]


def test_tensorboard_alone_needs_no_store(run_dir: Path, tmp_path: Path) -> None:
    """All points, system metrics and pictures; the result names no MLflow run."""
    tracking = _opened(_config("tensorboard", tmp_path / "never.db"), run_dir)
    _train(run_dir, range(1, 6))
    assert _close(tracking)["tracking"] == NO_REF
    assert _scalars(run_dir) == [1, 2, 3, 4, 5]
    assert _scalars(run_dir, "system/memory_gib") == [5]
    assert EventAccumulator(str(run_dir / "tensorboard")).Reload().Tags()["images"] == ["plots/curves"]
    assert not (tmp_path / "never.db").exists()


def test_none_leaves_nothing(run_dir: Path, tmp_path: Path) -> None:
    tracking = _opened(_config("none", tmp_path / "never.db"), run_dir)
    _train(run_dir, range(1, 3))
    assert _close(tracking)["tracking"] == NO_REF
    assert sorted(path.name for path in run_dir.iterdir()) == ["metrics.jsonl", "run.yaml"]


def test_both_get_everything_once(run_dir: Path, store: Path) -> None:
    """D01."""
    tracking = _opened(_config("both", store), run_dir)
    _train(run_dir, range(1, 6))
    (run_dir / "data.json").write_text(json.dumps({"name": "digits", "source": "scikit-learn", "digest": "ab" * 32}))
    run_id = _close(tracking)["tracking"]["run_id"]
    assert _history(store, run_id) == _scalars(run_dir) == [1, 2, 3, 4, 5]
    assert _history(store, run_id, "system/cpu_percent") == _scalars(run_dir, "system/cpu_percent") == [5]
    run = MlflowClient(f"sqlite:///{store}").get_run(str(run_id))
    assert (run.info.status, run.info.run_name) == ("FINISHED", "a-run")
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, [tag.value for tag in given.tags]) == ("digits", ["training"])
    note = run.data.tags["mlflow.note.content"]
    assert "python -m src.train optim.lr=0.1" in note
    assert "**val/accuracy 0.9000**" in note


def test_words_of_ones_own_and_the_split_of_an_evaluation(run_dir: Path, store: Path) -> None:
    config = _config("mlflow", store, kind=EvaluateConfig, description="why", run_name="mine", system_metrics=False)
    assert isinstance(config, EvaluateConfig)
    config.split = Split.test
    config.tags = {"a@b": None}
    tracking = _opened(config, run_dir)
    (run_dir / "data.json").write_text(json.dumps({"name": "digits", "source": "scikit-learn", "digest": "ab" * 32}))
    run = MlflowClient(f"sqlite:///{store}").get_run(str(_close(tracking)["tracking"]["run_id"]))
    assert run.info.run_name == "mine"
    assert run.data.tags["mlflow.note.content"] == "why"
    assert "null" in [value for name, value in run.data.tags.items() if name.startswith("a_b")]
    assert [tag.value for given in run.inputs.dataset_inputs for tag in given.tags] == ["test"]
    assert not (run_dir / "system.jsonl").exists()


def _block(store: Path) -> Path:
    """A file where the store's folder should be: nothing can be opened there until it goes."""
    folder = store.parent
    folder.rename(folder.with_name("aside"))
    folder.write_text("in the way")
    return folder


def _unblock(folder: Path) -> None:
    folder.unlink()
    folder.with_name("aside").rename(folder)


def test_a_store_that_comes_at_the_end_gets_the_whole_run(run_dir: Path, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FAULTS 14: TensorBoard goes on meanwhile; one warning; the true status and the address in result.json."""
    folder = _block(store)
    tracking = _opened(_config("both", store), run_dir)
    assert tracking.ref == NO_REF
    _train(run_dir, range(1, 6))
    _unblock(folder)
    result = _close(tracking, status="FAILED", reason="no luck", exit_code=4)
    run_id = result["tracking"]["run_id"]
    assert json.loads((run_dir / "result.json").read_text())["tracking"] == result["tracking"] == tracking.ref
    assert json.loads((run_dir / "tracking.json").read_text())["run_id"] == run_id
    assert MlflowClient(f"sqlite:///{store}").get_run(run_id).info.status == "FAILED"
    assert _history(store, run_id) == _scalars(run_dir) == [1, 2, 3, 4, 5]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_store_that_comes_during_the_run_is_taken_then(run_dir: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 14."""
    monkeypatch.setattr(track, "RETRY_SECONDS", 0.05)
    folder = _block(store)
    tracking = _opened(_config("mlflow", store), run_dir)
    _train(run_dir, range(1, 4))
    _unblock(folder)
    deadline = time.monotonic() + 20
    while tracking.ref == NO_REF:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    _close(tracking)
    client = MlflowClient(f"sqlite:///{store}")
    (run,) = client.search_runs([str(tracking.ref["experiment_id"])])
    assert _history(store, run.info.run_id) == [1, 2, 3]


def test_a_store_that_never_comes_costs_one_warning(run_dir: Path, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """D16."""
    _block(store)
    tracking = _opened(_config("both", store), run_dir)
    _train(run_dir, range(1, 4))
    assert _close(tracking)["tracking"] == NO_REF
    assert _scalars(run_dir) == [1, 2, 3]
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "goes on without MLflow" in record.getMessage()


def test_a_required_store_that_is_away_is_refused(run_dir: Path, store: Path) -> None:
    """FAULTS 14: exit 75, with the way out."""
    _block(store)
    with pytest.raises(TryAgainError, match=r"tracking\.uri=.*tracking\.required=false") as raised:
        _opened(_config("mlflow", store, required=True), run_dir)
    assert raised.value.exit_code == 75


def test_a_resumed_run_has_every_step_once(run_dir: Path, store: Path) -> None:
    """D07: stopped at 7, resumed from 5 in the same directory, in both trackers and with system points."""
    first = _opened(_config("both", store), run_dir)
    _train(run_dir, range(1, 8))
    run_id = _close(first, status="KILLED")["tracking"]["run_id"]
    track.journal.truncate_after(run_dir / "metrics.jsonl", step=5)  # as the launcher does before it starts again
    second = _opened(_config("both", store), run_dir, resume_run_id=run_id)
    _train(run_dir, range(6, 10))
    assert _close(second)["tracking"]["run_id"] == run_id
    assert _history(store, run_id) == list(range(1, 10))
    assert _scalars(run_dir) == list(range(1, 10))
    assert _scalars(run_dir, "system/cpu_percent") == [9]


def test_nothing_is_written_outside_the_run_and_its_store(run_dir: Path, store: Path, tmp_path: Path) -> None:
    """I10: names that would be other paths."""
    config = _config("both", store, experiment_name="../../evil", run_name="../../evil")
    config.tags = {"../../evil": "../../evil"}
    tracking = _opened(config, run_dir)
    _train(run_dir, range(1, 3))
    _close(tracking)
    written = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"run", "store"}
    assert not list(tmp_path.parent.glob("*evil*"))


def test_passwords_reach_no_record(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store gets the whole address, and neither params, tags nor description have its password."""
    given: dict[str, Any] = {}

    def start(settings: TrackingConfig, **arguments: Any) -> None:
        given.update(arguments)
        raise TryAgainError("away")

    monkeypatch.setattr("src.tracking.mlflow.start", start)
    config = Config(tracking=TrackingConfig(uri="http://me:secret@host", system_metrics=False))
    tracking = RunTracking(config, run_dir=run_dir)
    tracking.open(overrides=["tracking.uri=http://me:secret@host"], resume_run_id=None)
    tracking.wait()
    assert given.pop("uri") == "http://me:secret@host"
    assert given["params"]["tracking.uri"] == "http://host"
    assert "secret" not in str(given)


def test_the_default_store_stands_at_the_projects_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D13, H05: whatever the current directory, and its artifacts beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = store_uri(None)
    assert uri == f"sqlite:///{Path(track.__file__).parents[2] / 'mlflow.db'}"
    assert artifact_location(uri, experiment="halfstep", root=PROJECT_ROOT) == (PROJECT_ROOT / "mlartifacts" / "halfstep").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here.db")
    assert store_uri(None) == f"sqlite:///{tmp_path / 'here.db'}"
