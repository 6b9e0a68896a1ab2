"""Checkpoints by path and by MLflow run id, with the store stubbed."""

import pytest

from src.checkpoint.save import write_checkpoint
from src.errors import CheckpointError
from src.launch import locate
from src.tracking import mlflow

RUN_ID = "0123456789abcdef" * 2


@pytest.fixture
def run_dir(tmp_path):
    """A run with its best at step 1 and its newest at step 2."""
    for step in (1, 2):
        write_checkpoint(tmp_path / "run" / "checkpoints", {"config": {}}, about={"step": step}, is_best=step == 1, keep=2)
    return tmp_path / "run"


@pytest.fixture
def tags(monkeypatch):
    """What the store answers; the questions it was asked are under "asked"."""
    answers = {"asked": []}

    def read_tag(uri, run_id, tag):
        answers["asked"].append((uri, run_id, tag))
        return answers.get(run_id)

    monkeypatch.setattr(mlflow, "read_tag", read_tag)
    return answers


@pytest.mark.parametrize(("best", "name"), [(True, "best.pt"), (False, "step-00000002.pt")])
def test_a_directory_or_a_run_id_means_its_best_or_newest(run_dir, tags, best, name):
    expected = run_dir / "checkpoints" / name
    tags[RUN_ID] = str(run_dir)
    for reference in (str(run_dir), str(run_dir / "checkpoints"), RUN_ID):
        assert locate.locate(reference, best=best, uri="sqlite:////somewhere/mlflow.db") == expected
    assert tags["asked"] == [("sqlite:////somewhere/mlflow.db", RUN_ID, "halfstep.run_dir")]


def test_a_file_is_itself(run_dir, tags):
    path = run_dir / "checkpoints" / "step-00000001.pt"
    path.write_bytes(b"any content: loading judges it")
    assert locate.locate(str(path), best=True, uri=None) == path


def test_a_directory_that_looks_like_a_run_id_is_a_directory(run_dir, tags, monkeypatch):
    run_dir.rename(run_dir.parent / RUN_ID)
    monkeypatch.chdir(run_dir.parent)
    assert locate.locate(RUN_ID, best=True, uri=None).resolve() == run_dir.parent / RUN_ID / "checkpoints" / "best.pt"
    assert not tags["asked"]


@pytest.mark.parametrize(
    ("answer", "match"), [(None, f"run {RUN_ID} has no run directory; give a checkpoint"), ("/gone/away", "not on this machine")]
)
def test_a_run_whose_files_are_elsewhere_is_refused(tags, answer, match):
    if answer:
        tags[RUN_ID] = answer
    with pytest.raises(CheckpointError, match=match):
        locate.locate(RUN_ID, best=True, uri=None)


def test_nothing_there_is_refused(tmp_path, tags):
    for reference, match in ((str(tmp_path / "nowhere"), "does not exist"), (str(tmp_path), "holds no checkpoint")):
        with pytest.raises(CheckpointError, match=match):
            locate.locate(reference, best=True, uri=None)
    assert not tags["asked"]


def test_the_store_is_the_option_or_the_environment_or_the_projects(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://from-the-environment:5000")
    assert locate.store_uri("http://from-the-option:5000") == "http://from-the-option:5000"
    assert locate.store_uri(None) == "http://from-the-environment:5000"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(tmp_path)
    assert locate.store_uri(None) == f"sqlite:///{locate.PROJECT_ROOT / 'mlflow.db'}"
    assert (locate.PROJECT_ROOT / "src" / "launch" / "locate.py").is_file()


def test_a_name_that_no_file_can_have_is_one_line(tags):
    with pytest.raises(CheckpointError, match=r"^x+ can't be read: File name too long; give a checkpoint file") as caught:
        locate.locate("x" * 300, best=True, uri=None)
    assert "\n" not in str(caught.value)
