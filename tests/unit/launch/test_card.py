"""What is told about the rank that failed first."""

from src.launch.card import card_lines, failure_card
from src.launch.heartbeat import heartbeat_file
from src.launch.outcome import Outcome
from src.runtime.pulse import Pulse
from src.tracking.base import Point
from src.tracking.journal import Journal


def test_a_rank_that_could_write_tells_itself(tmp_path):
    own = Outcome("FAILED", 1, "ValueError: x", "Traceback\nValueError: x\n", rank=1, memory="5 GiB allocated at most")
    own.result = {"steps": 7, "metrics": {"train/loss": 0.5, "perf/step_ms": 3.0}}
    own.write(tmp_path)
    cause = Outcome("FAILED", 1, "ValueError: x", "Traceback\nValueError: x\n", rank=1)
    cause.failure = failure_card(cause, run_dir=tmp_path, memory={1: 2**20})
    assert cause.failure == {
        "rank": 1,
        "cause": "ValueError: x",
        "signal": None,
        "traceback": "Traceback\nValueError: x\n",
        "step": 7,
        "metrics": {"train/loss": 0.5, "perf/step_ms": 3.0},
        "memory": "5 GiB allocated at most",
        "log": "ranks/1/rank.log",
    }
    (tmp_path / "ranks" / "1" / "rank.log").touch()
    assert card_lines(cause, run_dir=tmp_path) == [
        "FAILED (exit code 1): ValueError: x",
        "  rank          1, after step 7",
        "  last metrics  train/loss 0.5",
        "  memory        5 GiB allocated at most",
        f"  log           {tmp_path / 'ranks' / '1' / 'rank.log'}",
        "Traceback\nValueError: x",
    ]


def test_for_a_rank_that_was_killed_the_launcher_and_the_journal_tell(tmp_path):
    pulse = Pulse(heartbeat_file(tmp_path, 0))
    pulse._step = 12
    pulse.alive()
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.write([Point("train/loss", 9.0 - step, step, 0.0) for step in range(9) for _ in range(20)])
    journal.write([Point("val/accuracy", 0.75, 8, 0.0)])
    cause = Outcome("FAILED", 6, "rank 0 was killed", rank=0, signal="SIGKILL")
    card = failure_card(cause, run_dir=tmp_path, memory={0: 3 * 2**30})
    assert (card["signal"], card["step"], card["traceback"], card["memory"]) == ("SIGKILL", 12, None, "3,072 MiB resident")
    assert card["metrics"] == {"train/loss": 1.0, "val/accuracy": 0.75}


def test_a_rank_of_which_nothing_is_known_still_has_a_card(tmp_path):
    cause = Outcome("FAILED", 6, "rank 2 was killed", rank=2)
    cause.failure = failure_card(cause, run_dir=tmp_path)
    assert (cause.failure["step"], cause.failure["metrics"], cause.failure["memory"]) == (None, {}, None)
    assert card_lines(cause, run_dir=tmp_path) == ["FAILED (exit code 6): rank 2 was killed", "  rank          2"]


def test_only_a_failure_has_one(tmp_path):
    for status in ("FINISHED", "KILLED"):
        assert failure_card(Outcome(status=status), run_dir=tmp_path) is None
    stopped = Outcome("KILLED", 143, "stopped by SIGTERM")
    assert card_lines(stopped, run_dir=tmp_path) == ["KILLED (exit code 143): stopped by SIGTERM"]
