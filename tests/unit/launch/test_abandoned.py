"""The run of a killed launcher stays RUNNING until the next start, or until the doctor looks."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from mlflow import MlflowClient

from src.errors import TryAgainError
from src.launch.abandoned import Finding, look_at
from src.sweep.directory import LOCK
from src.tracking.mlflow_abandoned import close_abandoned

TAG = "halfstep.run_dir"


def test_a_directory_is_abandoned_when_nobody_holds_its_lock(tmp_path):
    assert look_at(tmp_path / "on another machine") == Finding()
    assert look_at(tmp_path) == Finding()
    (tmp_path / LOCK).write_text("4711")
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert look_at(tmp_path) == Finding(process="4711")
    assert look_at(tmp_path) == Finding(ended="KILLED")
    assert look_at(tmp_path) == Finding(ended="KILLED")  # looking holds nothing


@pytest.mark.parametrize(("written", "expected"), [(2000, "FINISHED"), (500, "KILLED")])
def test_a_run_that_wrote_its_result_ended_with_that(tmp_path, written, expected):
    """The store was away at its end; a result that is older than the process is of an earlier one."""
    (tmp_path / LOCK).touch()
    (tmp_path / "result.json").write_text(json.dumps({"status": "FINISHED"}))
    os.utime(tmp_path / LOCK, (1000, 1000))
    os.utime(tmp_path / "result.json", (written, written))
    assert look_at(tmp_path) == Finding(ended=expected)


@pytest.fixture
def store(tmp_path):
    """An address, and the ids of runs by what they are."""
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    client = MlflowClient(tracking_uri=uri)
    ours, other = (client.create_experiment(name, artifact_location=str(tmp_path)) for name in ("ours", "other"))
    runs = {
        name: client.create_run(experiment, tags={} if name == "foreign" else {TAG: f"/{name}", "host.name": "h"}).info.run_id
        for name, experiment in (("dead", ours), ("alive", ours), ("foreign", ours), ("finished", ours), ("elsewhere", other))
    }
    client.set_terminated(runs["finished"], status="FINISHED")
    return uri, client, ours, runs


def statuses(client, runs):
    return {name: client.get_run(run_id).info.status for name, run_id in runs.items()}


def test_only_abandoned_running_runs_of_the_experiment_are_closed(store):
    uri, client, ours, runs = store
    close_abandoned(uri, tag=TAG, ended=lambda run_dir: None if run_dir == "/alive" else "KILLED", experiment_id=ours)
    expected = {"dead": "KILLED", "alive": "RUNNING", "foreign": "RUNNING", "finished": "FINISHED", "elsewhere": "RUNNING"}
    assert statuses(client, runs) == expected
    assert client.get_run(runs["dead"]).data.tags["reason"] == "its launcher was gone without a word"


def test_without_an_experiment_all_are_looked_at_and_told(store):
    uri, client, _, runs = store
    found = close_abandoned(uri, tag=TAG, ended=lambda run_dir: {"/dead": "FAILED", "/elsewhere": "KILLED"}.get(run_dir))
    assert {(run.run_id, run.run_dir, run.host, run.closed) for run in found} == {
        (runs["dead"], "/dead", "h", "FAILED"),
        (runs["alive"], "/alive", "h", None),
        (runs["elsewhere"], "/elsewhere", "h", "KILLED"),
    }
    assert statuses(client, runs)["dead"] == "FAILED"
    assert client.get_run(runs["dead"]).data.tags["reason"] == "it ended while the store was away"


def test_more_runs_than_a_page_holds(store, monkeypatch):
    uri, client, ours, _ = store
    for number in range(5):
        client.create_run(ours, tags={TAG: f"/{number}"})
    whole = MlflowClient.search_runs
    monkeypatch.setattr(MlflowClient, "search_runs", lambda *args, **how: whole(*args, **how | {"max_results": 2}))
    assert len(close_abandoned(uri, tag=TAG, ended=lambda run_dir: "KILLED")) == 8
    assert {run.info.status for run in client.search_runs([ours])} <= {"KILLED", "FINISHED", "RUNNING"}


@pytest.mark.parametrize("uri", ["sqlite:///{}/store.db", "http://127.0.0.1:9"])
def test_a_store_that_is_away_is_one_line_and_nothing_is_created(tmp_path, uri):
    with pytest.raises(TryAgainError, match=r"tracking.uri=") as caught:
        close_abandoned(uri.format(tmp_path), tag=TAG, ended=lambda run_dir: "KILLED")
    assert "\n" not in str(caught.value)
    assert list(Path(tmp_path).iterdir()) == []
