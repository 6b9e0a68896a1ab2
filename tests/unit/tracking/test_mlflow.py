"""One run in a real sqlite store; MLflow's own client and a plain sqlite connection are the oracles."""

import json
import logging
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities import ViewType
from torch import nn

from src.config import runfile
from src.config.schema import Config, CustomDataConfig, TrackingConfig
from src.errors import ConfigError, TryAgainError
from src.tracking import mlflow_store, mlflow_tracker
from src.tracking.base import Point, RunRef
from src.tracking.describe import description
from src.tracking.mlflow import start
from src.tracking.mlflow_tracker import MlflowTracker
from src.tracking.uri import sqlite_path


def _start(uri: str, *, config: TrackingConfig | None = None, **arguments: Any) -> MlflowTracker:
    arguments = {"run_name": "run", "params": {}, "tags": {}, "root": Path("/nowhere"), **arguments}
    return start(config or TrackingConfig(), uri=uri, **arguments)


def _rows(uri: str, query: str) -> list[tuple[Any, ...]]:
    path = sqlite_path(uri)
    assert path is not None
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def _history(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in MlflowClient(uri).get_metric_history(run_id, name)]


def _points(values: list[float], *, name: str = "val/loss", first: int = 1, time: float = 1.7e9) -> list[Point]:
    return [Point(name, value, step, time + step) for step, value in enumerate(values, first)]


def test_a_run_is_opened_filled_and_closed(uri: str, tmp_path: Path) -> None:
    """D01, D13: one run, its artifacts beside the store and nothing in the current folder."""
    os.chdir(tmp_path)
    picture = tmp_path / "a.png"
    picture.write_bytes(b"png")
    tracker = _start(uri, run_name="digits-amp", params={"optim.lr": 0.1, "resume": None}, tags={"git.commit": "abc"}, description="why")
    ref = tracker.ref
    tracker.log_points(_points([1.0, 0.5]))
    tracker.set_tags({"device": "cpu"})
    assert tracker.log_artifacts({"plots/curves.png": picture, "b.png": picture}) == ()
    assert tracker.finish("FINISHED")

    run = MlflowClient(uri).get_run(ref.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "digits-amp"
    assert run.info.experiment_id == ref.experiment_id
    assert run.data.params == {"optim.lr": "0.1", "resume": "null"}
    expected = {"device": "cpu", "git.commit": "abc", "mlflow.source.git.commit": "abc", "mlflow.note.content": "why"}
    assert expected.items() <= run.data.tags.items()
    assert "nonfinite_points" not in run.data.tags
    assert _history(uri, ref.run_id, "val/loss") == [(1, 1.0), (2, 0.5)]
    artifacts = tmp_path / "tracking store é" / "mlartifacts" / "halfstep" / ref.run_id / "artifacts"
    assert sorted(str(path.relative_to(artifacts)) for path in artifacts.rglob("*.png")) == ["b.png", "plots/curves.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "tracking store é"]
    assert _rows(uri, "select count(*) from runs") == [(1,)]


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_the_true_status_is_kept(uri: str, status: Any) -> None:
    """D08."""
    tracker = _start(uri)
    assert tracker.finish(status)
    assert MlflowClient(uri).get_run(tracker.ref.run_id).info.status == status


def test_the_environment_stays_as_it_was(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B13: also MLflow's usage reports, which set a variable when mlflow is imported, are off."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    mlflow_store.import_mlflow.cache_clear()
    monkeypatch.setenv("_MLFLOW_TELEMETRY_SESSION_ID", "as import mlflow leaves it")
    mlflow_store.import_mlflow()
    before = dict(os.environ)
    assert "_MLFLOW_TELEMETRY_SESSION_ID" not in before
    _start(uri).finish("FINISHED")
    assert dict(os.environ) == before


def test_more_params_than_one_batch_and_long_ones(uri: str) -> None:
    """D02, D04: all params arrive, a long one marked as shortened."""
    params = {f"p[{i}]": i for i in range(250)} | {"transforms": "x" * 7000}
    tracker = _start(uri, params=params, tags={"note": "y" * 9000})
    run = MlflowClient(uri).get_run(tracker.ref.run_id)
    assert len(run.data.params) == 251
    assert sorted(run.data.params.values())[:2] == ["0", "1"]
    assert "shortened from 7000 characters" in run.data.params["transforms"]
    assert "shortened from 9000 characters" in run.data.tags["note"]


def test_a_long_list_of_the_config_is_a_marked_param(uri: str) -> None:
    """D02, D04: a list of dicts that renders to 7000 characters, and free keys that differ in one refused character only."""
    kwargs: dict[str, Any] = {"transforms": [{"size[0]": 1, "name": "x" * 13 + str(i)} for i in range(220)], "a,b": 1, "a;b": 2}
    config = Config(data=CustomDataConfig(factory="m:f", kwargs=kwargs))
    whole = runfile.flatten(config)["data.kwargs.transforms"]
    assert len(whole) > 7000
    run = MlflowClient(uri).get_run(_start(uri, params=runfile.flatten(config)).ref.run_id)
    stored = run.data.params["data.kwargs.transforms"]
    assert len(stored) <= 6000
    assert whole.startswith(stored[:5000])
    assert f"shortened from {len(whole)} characters" in stored
    apart = {name: value for name, value in run.data.params.items() if name.startswith("data.kwargs.a")}
    assert sorted(apart.values()) == ["1", "2"]


def test_free_tags_with_odd_characters_arrive(uri: str) -> None:
    """D04: none refused, none on top of another."""
    tags = {"a b": 1, "a@b": "x", "a=b": "y", "käse": None, "ok/1.0": True, "../up": "z", "x" * 300: "long"}
    stored = MlflowClient(uri).get_run(_start(uri, tags=tags).ref.run_id).data.tags
    free = {name: value for name, value in stored.items() if not name.startswith("mlflow.")}
    assert sorted(free.values()) == sorted(["1", "x", "y", "null", "true", "z", "long"])
    assert (free["a b"], free["ok/1.0"]) == ("1", "true")


def test_awkward_metric_names_arrive_apart(uri: str) -> None:
    """D04."""
    tracker = _start(uri)
    tracker.log_points([Point(name, index, 1, 1.0) for index, name in enumerate(["acc@1", "acc@5", "a,b", "a;b"])])
    assert sorted(MlflowClient(uri).get_run(tracker.ref.run_id).data.metrics.values()) == [0, 1, 2, 3]


def test_non_finite_points_are_counted_not_stored(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """D05: 1.0, inf, nan, 0.9 leaves 1.0 and 0.9, a count of two and one warning; sending again doesn't count twice."""
    tracker = _start(uri)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            tracker.log_points(_points([1.0, math.inf, math.nan, 0.9]))
    tracker.finish("FINISHED")
    assert _rows(uri, "select step, value, is_nan from metrics order by step") == [(1, 1.0, 0), (4, 0.9, 0)]
    assert MlflowClient(uri).get_run(tracker.ref.run_id).data.tags["nonfinite_points"] == "2"
    assert len(caplog.records) == 1


def test_more_points_than_one_batch_and_sent_again(uri: str) -> None:
    """FAULTS 15: a replay makes no doubles."""
    tracker = _start(uri)
    points = _points([step / 7 for step in range(2300)])
    tracker.log_points(points)
    tracker.log_points(points[1000:])
    assert _history(uri, tracker.ref.run_id, "val/loss") == [(point.step, point.value) for point in points]


def test_resume_continues_the_run_with_each_step_once(uri: str) -> None:
    """D07: killed at 7, checkpoint at 5, resumed to 10; changed params become tags, and a new one is added."""
    first = _start(uri, params={"lr": 0.1, "epochs": 5, "resume": None})
    first.log_points(_points([float(step) for step in range(1, 8)]))
    first.log_points(_points([math.nan], name="train/loss"))
    first.finish("KILLED")
    first.set_tags({"reason": "killed", "device": "cpu"})
    params = {"lr": 0.2, "epochs": 5, "clip": None, "resume": "step-5.pt"}
    second = _start(uri, params=params, resume_run_id=first.ref.run_id, outdated=["reason", "restarts"])
    client = MlflowClient(uri)
    assert second.ref == first.ref
    assert client.get_run(second.ref.run_id).info.status == "RUNNING"
    second.log_points(_points([float(step) for step in range(6, 11)], first=6, time=1.8e9))
    second.finish("FINISHED")
    run = client.get_run(second.ref.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "epochs": "5", "clip": "null", "resume": "null"}
    assert (run.data.tags.get("reason"), run.data.tags["device"]) == (None, "cpu")
    assert {key: value for key, value in run.data.tags.items() if key.startswith("drift.")} == {"drift.lr": "0.1 -> 0.2"}
    assert run.data.tags["nonfinite_points"] == "1"
    assert _history(uri, second.ref.run_id, "val/loss") == [(step, float(step)) for step in range(1, 11)]
    assert _rows(uri, "select count(*) from runs") == [(1,)]


def test_the_description_follows_the_run_until_a_person_edits_it(uri: str) -> None:
    client, config = MlflowClient(uri), Config()

    def note() -> str:
        return client.get_run(tracker.ref.run_id).data.tags["mlflow.note.content"]

    first, second, third = (description(config, overrides=[f"seed={seed}"]) for seed in range(3))
    tracker = _start(uri, description=first)
    tracker.describe(second)
    assert note() == second
    tracker = _start(uri, description=third, resume_run_id=tracker.ref.run_id)
    assert note() == third
    client.set_tag(tracker.ref.run_id, "mlflow.note.content", "good one")
    tracker.describe(first)
    assert note() == "good one"
    tracker = _start(uri, description=first, resume_run_id=tracker.ref.run_id)
    assert note() == "good one"


@pytest.mark.parametrize("source", ["/data/images", "torchvision.datasets.CIFAR10 é"])
def test_the_data_set_is_an_input_once(uri: str, source: str) -> None:
    """Also after a resume; MLflow's own reader finds the source, and its filter the run."""
    import mlflow

    about = {"name": "digits", "source": source, "digest": "0123456789" * 6 + "abcd", "train_size": 1437, "val_size": 360, "classes": 10}
    tracker = _start(uri)
    tracker.log_dataset(about, context="training")
    _start(uri, resume_run_id=tracker.ref.run_id).log_dataset(about, context="training")
    _start(uri)
    client = MlflowClient(uri)
    (found,) = client.search_runs([tracker.ref.experiment_id], filter_string="dataset.name = 'digits' and dataset.context = 'training'")
    (given,) = found.inputs.dataset_inputs
    assert found.info.run_id == tracker.ref.run_id
    assert about["digest"].startswith(given.dataset.digest)
    assert len(given.dataset.digest) == 36
    assert json.loads(given.dataset.profile)["train_size"] == 1437
    assert source in str(json.loads(mlflow.data.get_source(given.dataset).to_json()))


def test_params_that_fail_at_start_are_sent_at_the_end(uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """FAULTS 15: a store that dies after the run was made costs a warning, and not a second run."""
    with monkeypatch.context() as patch:
        patch.setattr(mlflow_tracker, "_log_params", _away)
        tracker = _start(uri, params={"lr": 0.1})
    assert MlflowClient(uri).get_run(tracker.ref.run_id).data.params == {}
    assert "params can't be set" in caplog.text
    tracker.finish("FINISHED")
    assert MlflowClient(uri).get_run(tracker.ref.run_id).data.params == {"lr": "0.1"}


def _away(*_: Any) -> None:
    raise OSError("the server is down")


@pytest.mark.parametrize("run_id", ["0123456789abcdef0123456789abcdef", "../x"])
def test_resuming_an_unknown_run_gives_a_choice(uri: str, run_id: str) -> None:
    """D07."""
    with pytest.raises(ConfigError, match=r"is not in tracking\.uri=.*tracking=none"):
        _start(uri, resume_run_id=run_id)


def test_resuming_a_deleted_run_gives_a_choice(uri: str) -> None:
    """D07."""
    run_id = _start(uri).ref.run_id
    MlflowClient(uri).delete_run(run_id)
    with pytest.raises(ConfigError, match=f"mlflow runs restore --run-id {run_id}"):
        _start(uri, resume_run_id=run_id)


def test_deleted_experiment_is_a_config_error(uri: str) -> None:
    experiment_id = _start(uri).ref.experiment_id
    MlflowClient(uri).delete_experiment(experiment_id)
    with pytest.raises(ConfigError, match=r"tracking\.experiment_name=halfstep was deleted"):
        _start(uri)


@pytest.mark.parametrize("name", ["", "x" * 501])
def test_impossible_experiment_name_is_a_config_error(uri: str, name: str) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.experiment_name="):
        _start(uri, config=TrackingConfig(experiment_name=name))


def test_experiment_name_cannot_leave_the_artifact_folder(uri: str, tmp_path: Path) -> None:
    """I10: neither can an artifact's name."""
    file = tmp_path / "f.txt"
    file.write_text("x")
    tracker = _start(uri, config=TrackingConfig(experiment_name="../../evil"), run_name="../../evil")
    assert tracker.log_artifacts({"f.txt": file}) == ()
    assert tracker.log_artifacts({"../../y/f.txt": file, "later.txt": file}) == ("../../y/f.txt", "later.txt")
    assert tracker.log_artifacts({str(tmp_path / "outside" / "f.txt"): file}) == (str(tmp_path / "outside" / "f.txt"),)
    stray = [path for path in tmp_path.rglob("*") if path.is_file() and "mlartifacts" not in path.parts and path != file]
    assert sorted(path.name for path in stray) == ["mlflow.db", "mlflow.db.lock"]


def test_failed_artifacts_are_named(uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FAULTS 29."""
    file = tmp_path / "f.txt"
    file.write_text("x")
    tracker = _start(uri)
    (tmp_path / "tracking store é" / "mlartifacts").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert tracker.log_artifacts({"a.txt": file, "b.txt": file, "gone.txt": tmp_path / "gone.txt"}) == ("gone.txt", "a.txt", "b.txt")
    assert len(caplog.records) == 1
    assert file.read_text() == "x"


@pytest.fixture
def dead_server() -> Iterator[str]:
    """Address of a port that refuses connections."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield f"http://me:secret@127.0.0.1:{server.getsockname()[1]}"


def test_store_that_is_away_is_exit_75(dead_server: str) -> None:
    """FAULTS 14: within 10 s, and without the password; whether that ends the run is up to the launcher."""
    begin = time.monotonic()
    with pytest.raises(TryAgainError, match="Connection refused") as raised:
        _start(dead_server)
    assert time.monotonic() - begin < 10
    assert raised.value.exit_code == 75
    assert "secret" not in str(raised.value)


def test_a_server_that_hangs_costs_seconds_at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FAULTS 15: it takes connections and answers nothing; uploads are given up without waiting for their own long time-outs."""
    (tmp_path / "f.txt").write_text("x")
    monkeypatch.setattr(mlflow_store, "_BRIEF", (0.2, 0))
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        tracker = MlflowTracker(MlflowClient(uri), RunRef(uri, "1", "0" * 32))
        begin = time.monotonic()
        assert tracker.log_artifacts({"f.txt": tmp_path / "f.txt"}) == ("f.txt",)
        assert not tracker.log_model(nn.Identity(), np.zeros((2, 1, 2, 2), np.float32))
        assert not tracker.finish("FINISHED")
    assert time.monotonic() - begin < 5


def test_store_that_dies_later_raises_only_to_the_sender(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """FAULTS 15: points raise, so that they are sent again; everything else warns."""
    tracker = _start(uri)
    path = sqlite_path(uri)
    assert path is not None
    path.write_bytes(b"not a database any more" * 100)
    with pytest.raises(Exception, match="not a database"):
        tracker.log_points(_points([1.0]))
    with caplog.at_level(logging.WARNING):
        tracker.set_tags({"a": "b"})
        assert not tracker.finish("FINISHED")
    assert len(caplog.records) == 2


def test_starting_waits_for_a_locked_store(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 16: sqlite's own time-out passes, ours goes on."""
    path = sqlite_path(uri)
    assert path is not None
    _make_sqlite_impatient(monkeypatch)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        timer = threading.Timer(1.0, lambda: connection.execute("COMMIT"))
        timer.start()
        _start(uri)
        timer.join()
    assert _rows(uri, "select count(*) from runs") == [(1,)]


def _make_sqlite_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.dbapi2.connect
    monkeypatch.setattr(sqlite3.dbapi2, "connect", lambda *args, **kwargs: connect(*args, **{**kwargs, "timeout": 0.05}))


def test_a_lock_that_never_opens_is_reported(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sqlite_path(uri)
    assert path is not None
    _make_sqlite_impatient(monkeypatch)
    monkeypatch.setattr(mlflow_store, "LOCK_SECONDS", 0.3)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TryAgainError, match="locked"):
            _start(uri)


def test_four_threads_create_one_store(tmp_path: Path) -> None:
    """D10, FAULTS 16: whoever is first builds it, the others find it whole."""
    uri = f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}"
    errors: list[Exception] = []

    def open_run() -> None:
        try:
            _start(uri)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert _rows(uri, "select count(*), count(distinct experiment_id) from runs") == [(4, 1)]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["mlflow.db", "mlflow.db.lock"]
    locations = [location for (location,) in _rows(uri, "select artifact_location from experiments")]
    assert all(location.startswith((tmp_path / "new" / "mlartifacts").as_uri()) for location in locations)


def test_older_store_is_upgraded_with_a_copy_of_it(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    from alembic import command
    from mlflow.store.db import utils

    path = sqlite_path(uri)
    assert path is not None
    head = _rows(uri, "select version_num from alembic_version")
    engine = utils.create_sqlalchemy_engine(uri)
    config = utils._get_alembic_config(uri)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "-1")
    engine.dispose()
    old = _rows(uri, "select version_num from alembic_version")
    assert old != head
    with caplog.at_level(logging.WARNING):
        _start(uri)
    assert "upgrading" in caplog.text
    assert _rows(uri, "select version_num from alembic_version") == head
    assert _rows(f"sqlite:///{path}.backup", "select version_num from alembic_version") == old


def test_store_of_a_newer_mlflow_is_refused(uri: str) -> None:
    path = sqlite_path(uri)
    assert path is not None
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("update alembic_version set version_num = 'ffffffffffff'")
        connection.commit()
    with pytest.raises(ConfigError, match="newer MLflow"):
        _start(uri)


def _net(channels: int) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 10))
    net(torch.randn(16, channels, 8, 8))
    return net.eval()


@pytest.mark.parametrize("channels", [1, 3])
def test_logged_model_gives_the_same_logits_for_any_batch(uri: str, channels: int) -> None:
    """As a user loads it: by MLflow alone, with an example of a single image when it was logged."""
    import mlflow

    net = _net(channels)
    tracker = _start(uri)
    assert tracker.log_model(net, np.zeros((1, channels, 8, 8), np.float32))
    tracker.finish("FINISHED")
    run = MlflowClient(uri).get_run(tracker.ref.run_id)
    (output,) = run.outputs.model_outputs
    logged = MlflowClient(uri).get_logged_model(output.model_id)
    assert (logged.name, logged.status.value, logged.source_run_id) == ("model", "READY", tracker.ref.run_id)
    loaded = mlflow.pytorch.load_model(logged.artifact_location)
    images = torch.randn(7, channels, 8, 8)
    for batch in (images, images[:1], images[:2]):
        assert torch.equal(loaded(batch), net(batch))
    assert loaded(images).shape == (7, 10)
    signature = mlflow.models.Model.load(unquote(urlsplit(logged.artifact_location).path)).signature
    assert [spec.shape for spec in (*signature.inputs.inputs, *signature.outputs.inputs)] == [(-1, channels, 8, 8), (-1, 10)]


class _DataDependent(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) if images.sum() > 0 else -images.flatten(1)


def test_a_net_that_cannot_be_exported_costs_a_warning(
    uri: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = _start(uri)
    with caplog.at_level(logging.WARNING):
        assert not tracker.log_model(_DataDependent(), np.ones((2, 1, 4, 4), np.float32))
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == ["src.tracking.mlflow_tracker"]
    assert "def forward" not in "".join(capfd.readouterr())
    (model,) = MlflowClient(uri).search_logged_models([tracker.ref.experiment_id])
    assert model.status.value == "FAILED"
    assert tracker.finish("FINISHED")


def test_one_run_may_not_touch_mlflows_globals(uri: str) -> None:
    import mlflow

    before = mlflow.get_tracking_uri()
    tracker = _start(uri)
    assert mlflow.active_run() is None
    assert mlflow.get_tracking_uri() == before
    assert [run.info.run_id for run in MlflowClient(uri).search_runs([tracker.ref.experiment_id], run_view_type=ViewType.ALL)] == [
        tracker.ref.run_id
    ]
