"""FAULTS row 2: the run of a killed launcher stays RUNNING until the next start."""

import fcntl

from mlflow import MlflowClient

from src.launch.locate import is_abandoned
from src.sweep.directory import LOCK
from src.tracking.mlflow_abandoned import close_abandoned

TAG = "halfstep.run_dir"


def test_a_directory_is_abandoned_when_nobody_holds_its_lock(tmp_path):
    assert not is_abandoned(str(tmp_path / "on another machine"))
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not is_abandoned(str(tmp_path))
    assert is_abandoned(str(tmp_path))


def test_only_abandoned_running_runs_of_the_experiment_are_closed(tmp_path):
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    client = MlflowClient(tracking_uri=uri)
    ours, other = (client.create_experiment(name, artifact_location=str(tmp_path)) for name in ("ours", "other"))
    runs = {
        name: client.create_run(experiment, tags={} if name == "foreign" else {TAG: f"/{name}"}).info.run_id
        for name, experiment in (("dead", ours), ("alive", ours), ("foreign", ours), ("finished", ours), ("elsewhere", other))
    }
    client.set_terminated(runs["finished"], status="FINISHED")
    close_abandoned(uri, ours, tag=TAG, is_abandoned=lambda run_dir: run_dir != "/alive")
    statuses = {name: client.get_run(run_id).info.status for name, run_id in runs.items()}
    assert statuses == {"dead": "KILLED", "alive": "RUNNING", "foreign": "RUNNING", "finished": "FINISHED", "elsewhere": "RUNNING"}


def test_a_store_that_is_away_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    close_abandoned(f"sqlite:///{tmp_path / 'file' / 'store.db'}", "1", tag=TAG, is_abandoned=lambda run_dir: True)
    assert "can't be closed now" in caplog.text
