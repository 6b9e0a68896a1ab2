"""Which end is worth a restart, and where that goes on; the group itself is replaced by a script of ends."""

import pytest

from src.checkpoint.save import write_checkpoint
from src.config import runfile
from src.config.schema import Config, DDPConfig, EvaluateConfig
from src.errors import CheckpointError, ConfigError, DataError, ExitCode, NonFiniteError, Stopped
from src.launch import elastic
from src.launch.elastic import GroupEnd
from src.launch.group import next_attempt, run_group
from src.launch.heartbeat import Hang, heartbeat_file
from src.launch.outcome import Outcome
from src.tracking.base import Point
from src.tracking.journal import Journal, read_points

LOST = GroupEnd({1: -9})
HUNG = GroupEnd({0: -9, 1: -9}, hang=Hang(1, 9.0, False, (0, 1)), ended=frozenset({0, 1}))
STOPPED = GroupEnd({}, stopped=Stopped("stopped by SIGTERM", exit_code=ExitCode.TERMINATED))


def checkpoint(run_dir, step):
    return write_checkpoint(run_dir / "checkpoints", {"config": {}}, about={"step": step}, is_best=False, keep=9)


def journal(run_dir, steps):
    written = Journal(run_dir / "metrics.jsonl")
    written.write([Point("train/loss", 0.5, step, 0.0) for step in range(1, steps + 1)])
    written.close()


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Run a group whose attempts end as scripted: a ``GroupEnd``, an error of rank 1, or None for success."""

    def run(*script, max_restarts=9):
        resumed = []

        def run_ranks(run_file, **_):
            assert not list((tmp_path / "ranks").glob("*/*"))
            resumed.append(runfile.load(run_file).resume)
            event = script[len(resumed) - 1]
            for rank in range(2):
                if not isinstance(event, GroupEnd):
                    outcome = Outcome(rank=rank)
                    if event is not None and rank == 1:
                        outcome.blame(event)
                    outcome.write(tmp_path)
                heartbeat_file(tmp_path, rank).parent.mkdir(parents=True, exist_ok=True)
                heartbeat_file(tmp_path, rank).touch()
            return event if isinstance(event, GroupEnd) else GroupEnd({})

        monkeypatch.setattr(elastic, "run_ranks", run_ranks)
        config = Config(parallel=DDPConfig(max_restarts=max_restarts))
        runfile.save(config, tmp_path / "run.yaml")
        outcome = run_group(config, run_dir=tmp_path, job="train", world_size=2)
        assert not list((tmp_path / "ranks").glob("*/heartbeat"))
        assert len(resumed) == outcome.restarts + 1
        return outcome, resumed

    return run


@pytest.mark.parametrize("event", [LOST, HUNG, ValueError("a bug")], ids=["lost", "hung", "crashed"])
def test_what_may_pass_is_tried_again(play, event):
    outcome, _ = play(event, event, None)
    assert (outcome.status, outcome.restarts, outcome.failure) == ("FINISHED", 2, None)


@pytest.mark.parametrize(
    ("event", "code"),
    [(ConfigError("x"), 2), (DataError("x"), 3), (NonFiniteError("x"), 4), (CheckpointError("x"), 5), (MemoryError(), 8), (STOPPED, 143)],
)
def test_what_would_come_back_or_was_wanted_is_not(play, event, code):
    outcome, _ = play(event)
    assert (outcome.exit_code, outcome.restarts) == (code, 0)


def test_it_ends_after_so_many_restarts_with_the_last_cause(play):
    outcome, _ = play(LOST, LOST, ValueError("the last"), max_restarts=2)
    assert (outcome.exit_code, outcome.restarts, outcome.failure["cause"]) == (1, 2, "ValueError: the last")


def test_each_attempt_goes_on_from_the_newest_checkpoint(play, tmp_path):
    path = checkpoint(tmp_path, 8)
    _, resumed = play(LOST, None)
    assert resumed == [None, str(path)]


def test_the_journal_is_cut_to_the_checkpoint(tmp_path):
    journal(tmp_path, 12)
    checkpoint(tmp_path, 4)
    path = checkpoint(tmp_path, 8)
    assert next_attempt(Config(), tmp_path).resume == str(path)
    assert read_points(tmp_path / "metrics.jsonl")[0][-1].step == 8
    path.write_bytes(path.read_bytes()[:-9])
    assert next_attempt(Config(), tmp_path).resume.endswith("step-00000004.pt")
    assert read_points(tmp_path / "metrics.jsonl")[0][-1].step == 4


@pytest.mark.parametrize("resumes", [True, False])
def test_without_a_checkpoint_of_its_own_it_begins_like_the_first_attempt(tmp_path, resumes):
    journal(tmp_path, 12)
    start = str(checkpoint(tmp_path / "old", 6)) if resumes else None
    assert next_attempt(Config(resume=start), tmp_path).resume == start
    points, _ = read_points(tmp_path / "metrics.jsonl")
    assert [point.step for point in points] == list(range(1, 7 if resumes else 1))


def test_if_every_checkpoint_is_damaged_there_is_no_restart(play, tmp_path):
    path = checkpoint(tmp_path, 8)
    path.write_bytes(path.read_bytes()[:-9])
    outcome, _ = play(LOST)
    assert (outcome.exit_code, outcome.restarts) == (6, 0)


def test_an_evaluation_begins_anew(tmp_path):
    config = EvaluateConfig(checkpoint="/x.pt")
    assert next_attempt(config, tmp_path) is config


def test_a_wrong_fault_is_refused_before_anything_starts(play, monkeypatch):
    monkeypatch.setenv("HALFSTEP_FAULT", "kill:2:1")
    with pytest.raises(ConfigError, match="HALFSTEP_FAULT=kill:2:1"):
        play()
