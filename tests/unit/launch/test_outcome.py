"""How a run ended, from how its ranks ended."""

import json

import pytest
import torch

from src.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ExitCode,
    HalfstepError,
    HangError,
    NonFiniteError,
    RankLostError,
    Stopped,
    TryAgainError,
)
from src.launch.heartbeat import Hang
from src.launch.outcome import Outcome, a_peer_failed, combine, read

STOP = Stopped("stopped by SIGTERM", exit_code=ExitCode.TERMINATED)
SAVED = Stopped("stopped after step 9; the checkpoint holds this step", exit_code=ExitCode.TERMINATED)


def raised(error):
    """The error with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ConfigError("optim.lr=0 must be above 0"), "FAILED", 2),
        (DataError("data.root=/x is empty"), "FAILED", 3),
        (NonFiniteError("50 updates"), "FAILED", 4),
        (CheckpointError("damaged"), "FAILED", 5),
        (RankLostError("rank 1"), "FAILED", 6),
        (HangError("rank 1"), "FAILED", 7),
        (TryAgainError("away"), "FAILED", 75),
        (HalfstepError("other"), "FAILED", 1),
        (Stopped("stopped", exit_code=ExitCode.INTERRUPTED), "KILLED", 130),
        (Stopped("stopped", exit_code=ExitCode.TERMINATED), "KILLED", 143),
    ],
)
def test_an_error_of_ours_gives_its_own_code_and_text_and_no_trace(error, status, code):
    """The contract's exit codes."""
    outcome = Outcome()
    outcome.blame(raised(error))
    assert (outcome.status, outcome.exit_code, outcome.reason, outcome.trace) == (status, code, str(error), None)


def test_ctrl_c_is_130():
    outcome = Outcome()
    outcome.blame(raised(KeyboardInterrupt()))
    assert (outcome.status, outcome.exit_code, outcome.reason, outcome.trace) == ("KILLED", 130, "interrupted", None)


def test_out_of_memory_is_8_and_says_what_helps():
    outcome = Outcome()
    outcome.blame(raised(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore\nlines")))
    assert (outcome.status, outcome.exit_code, outcome.trace) == ("FAILED", 8, None)
    assert outcome.reason.startswith("out of memory: CUDA out of memory. Tried to allocate 2 GiB.; lower train.batch_size")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (KeyError("key"), "KeyError: 'key'"),
        (AssertionError(), "AssertionError: "),
        (SystemExit(3), "SystemExit: 3"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
    ],
)
def test_anything_else_is_1_with_its_traceback(error, reason):
    """D08: a SystemExit in the middle is a failure too, whatever its code."""
    outcome = Outcome()
    outcome.blame(raised(error))
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("FAILED", 1, reason)
    assert "Traceback" in outcome.trace
    assert "in raised" in outcome.trace


@pytest.mark.parametrize(
    "said",
    [
        "DataLoader worker (pid 12) is killed by signal: Killed. ",
        "DataLoader worker (pid(s) 12, 13) exited unexpectedly",
        "DataLoader worker (pid unknown) died while it handed over images",
        "DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    ],
)
def test_a_dead_loader_process_is_6_and_says_what_helps(said):
    """torch raises a bare RuntimeError, wherever the main thread is just then."""
    outcome = Outcome()
    outcome.blame(RuntimeError(said))
    assert (outcome.status, outcome.exit_code, outcome.trace) == ("FAILED", 6, None)
    assert outcome.reason is not None
    assert outcome.reason.startswith(f"a process that loads images died: {said.rstrip(' .')} (")
    assert "data.num_workers" in outcome.reason


def test_an_error_in_a_loader_process_is_not_its_death():
    outcome = Outcome()
    outcome.blame(RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback"))
    assert outcome.exit_code == 1
    assert outcome.trace is not None


def test_an_outcome_file_gives_the_same_outcome_back(tmp_path):
    outcome = Outcome(rank=3, result={"metrics": {"val/loss": 0.25}, "steps": 7})
    outcome.blame(raised(NonFiniteError("ünicode")))
    outcome.write(tmp_path)
    json.loads((tmp_path / "ranks" / "3" / "outcome.json").read_text())
    assert read(tmp_path, 3) == outcome
    assert read(tmp_path, 2) is None


def write(tmp_path, rank, end, *, time=0.0):
    """A rank's file: ``end`` is "done", "stopped", or an error."""
    outcome = Outcome(rank=rank, result={"steps": 10 + rank})
    if end != "done":
        outcome.blame(raised(SAVED if end == "stopped" else end))
    outcome.time = time
    outcome.write(tmp_path)


CASES = {
    "all finished": ({0: "done", 1: "done"}, {}, None, "FINISHED", 0, None),
    "all stopped": ({0: "stopped", 1: "stopped"}, {}, None, "KILLED", 143, "after step 9"),
    "stopped, but one failed": ({0: "stopped", 1: DataError("bad image")}, {}, None, "FAILED", 3, "bad image"),
    "one failed": ({0: "done", 1: DataError("bad image")}, {1: 3}, None, "FAILED", 3, "bad image"),
    "one failed, the engine ended the other": ({1: DataError("bad image")}, {0: -15, 1: 3}, None, "FAILED", 3, "bad image"),
    "killed, no file": ({0: "done"}, {1: -9}, None, "FAILED", 6, "rank 1 was killed by signal 9"),
    "rank 0 killed": ({1: "done"}, {0: -11}, None, "FAILED", 6, "rank 0 was killed by signal 11"),
    "killed; the other noticed first": ({0: RuntimeError("Connection closed by peer")}, {0: 1, 1: -9}, None, "FAILED", 6, "signal 9"),
    "left without a word": ({0: "done"}, {1: 1}, None, "FAILED", 6, "rank 1 ended with exit code 1"),
    "gone without a code": ({0: "done"}, {}, None, "FAILED", 6, "rank 1 ended with exit code None"),
    "nobody wrote, one was killed": ({}, {0: -15, 1: -9}, None, "FAILED", 6, "rank 1 was killed by signal 9"),
    "told to stop and stopped": ({0: "stopped", 1: "stopped"}, {}, STOP, "KILLED", 143, "after step 9"),
    "told to stop, too late": ({0: "done", 1: "done"}, {}, STOP, "FINISHED", 0, None),
    "told to stop, before they began": ({}, {}, STOP, "KILLED", 143, "stopped by SIGTERM"),
    "told to stop, one was not in time": ({0: "stopped"}, {}, STOP, "KILLED", 143, "after step 9"),
    "told to stop, a peer's end broke one": ({0: RuntimeError("peer")}, {}, STOP, "KILLED", 143, "stopped by SIGTERM"),
    "told to stop, one had finished": ({0: "done"}, {}, STOP, "KILLED", 143, "stopped by SIGTERM"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_of_the_end(tmp_path, name):
    files, exit_codes, stopped, status, code, reason = CASES[name]
    for rank, end in files.items():
        write(tmp_path, rank, end, time=float(rank))
    outcome = combine(tmp_path, 2, exit_codes=exit_codes, stopped=stopped)
    assert (outcome.status, outcome.exit_code) == (status, code)
    assert (reason is None and outcome.reason is None) or reason in outcome.reason
    assert outcome.result == ({"steps": 10} if 0 in files else {})


@pytest.mark.parametrize("first", [0, 1, 2])
def test_of_several_failures_the_first_in_time_is_the_cause(tmp_path, first):
    """The others failed because of it; the numbers are still rank 0's."""
    for rank in range(3):
        write(tmp_path, rank, ValueError(f"rank {rank}"), time=100.0 + (rank - first) % 3)
    outcome = combine(tmp_path, 3, exit_codes={0: 1, 1: 1, 2: 1})
    assert (outcome.rank, outcome.reason, outcome.result) == (first, f"ValueError: rank {first}", {"steps": 10})
    assert "Traceback" in outcome.trace


def test_a_lost_rank_is_named_with_its_log(tmp_path):
    outcome = combine(tmp_path, 1, exit_codes={0: -9})
    assert str(tmp_path / "ranks" / "0" / "rank.log") in outcome.reason


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (7, "SIGBUS"), (40, "signal 40")])
def test_a_signal_is_named(tmp_path, number, name):
    outcome = combine(tmp_path, 2, exit_codes={1: -number}, ended={0})
    assert (outcome.rank, outcome.signal) == (1, name)
    assert f"rank 1 was killed by signal {number}, {name}" in outcome.reason
    assert ("memory" in outcome.reason) == (number == 9)


def test_a_rank_that_the_launcher_killed_is_not_the_cause(tmp_path):
    write(tmp_path, 1, ValueError("mine"))
    outcome = combine(tmp_path, 2, exit_codes={0: -9, 1: 1}, ended={0})
    assert (outcome.rank, outcome.exit_code, outcome.reason) == (1, 1, "ValueError: mine")


@pytest.mark.parametrize("stopped", [True, False])
def test_a_hang_is_the_cause_whatever_its_end_looked_like(tmp_path, stopped):
    write(tmp_path, 0, RuntimeError("Connection closed by peer"))
    hang = Hang(rank=1, seconds=12.3, stopped=stopped, answered=() if stopped else (0, 1))
    outcome = combine(tmp_path, 2, exit_codes={0: -9, 1: -9}, ended={0, 1}, hang=hang)
    assert (outcome.status, outcome.exit_code, outcome.rank, outcome.trace) == ("FAILED", 7, 1, None)
    assert ("is stopped by a signal" in outcome.reason) == stopped
    assert "for 12 s (parallel.timeout_seconds)" in outcome.reason
    assert ("the stacks of ranks 0, 1 are in" in outcome.reason) == (not stopped)


@pytest.mark.parametrize(("end", "failed"), [("done", False), ("stopped", False), (ValueError("x"), True)])
def test_only_a_failure_of_another_rank_counts(tmp_path, end, failed):
    assert not a_peer_failed(tmp_path, rank=0)
    write(tmp_path, 1, end)
    assert a_peer_failed(tmp_path, rank=0) == failed
    assert not a_peer_failed(tmp_path, rank=1)


def test_a_second_ctrl_c_is_ctrl_c_though_the_ranks_see_sigterm(tmp_path):
    """FAULTS row 5."""
    write(tmp_path, 0, Stopped("stopped at once by SIGTERM", exit_code=ExitCode.TERMINATED))
    outcome = combine(tmp_path, 2, exit_codes={}, stopped=Stopped("stopped by SIGINT", exit_code=ExitCode.INTERRUPTED))
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("KILLED", 130, "stopped by SIGINT")
