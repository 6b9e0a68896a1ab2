"""The launcher's watch over real processes that only sleep."""

import os
import signal
import subprocess
import sys
import time

import pytest

from src.launch import heartbeat
from src.launch.heartbeat import Watch, heartbeat_file
from src.launch.outcome import Outcome
from src.runtime.pulse import Pulse


class Ranks:
    """Two processes that look like ranks to the watch and sleep."""

    def __init__(self, run_dir):
        self.run_file = run_dir / "run.yaml"
        command = [sys.executable, "-c", "import time; time.sleep(60)", str(self.run_file)]
        self.processes = [subprocess.Popen(command, env=dict(os.environ, RANK=str(rank))) for rank in (0, 1)]

    def codes(self, *, seconds):
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [process.poll() for process in self.processes]


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "PEER_SECONDS", 0.5)
    monkeypatch.setattr(heartbeat, "STACK_SECONDS", 0.1)
    found = Ranks(tmp_path)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


def test_while_all_is_well_nothing_is_touched(tmp_path, ranks):
    with Watch(ranks.run_file, num_processes=2, timeout_seconds=30) as watch:
        assert ranks.codes(seconds=1.5) == [None, None]
    assert (watch.hang, watch.ended) == (None, set())
    assert all(size > 2**20 for size in watch.memory.values())
    assert set(watch.memory) == {0, 1}


def test_the_others_end_soon_after_one_was_killed(tmp_path, ranks):
    """FAULTS row 1: on a GPU they wait where no signal is heard."""
    with Watch(ranks.run_file, num_processes=2, timeout_seconds=30) as watch:
        time.sleep(0.5)
        ranks.processes[1].kill()
        assert ranks.codes(seconds=10) == [-signal.SIGKILL, -signal.SIGKILL]
    assert (watch.ended, watch.hang) == ({0}, None)


@pytest.mark.parametrize(("status", "ends"), [("FAILED", True), ("FINISHED", False), ("KILLED", False)])
def test_the_others_end_soon_after_one_says_that_it_failed(tmp_path, ranks, status, ends):
    with Watch(ranks.run_file, num_processes=2, timeout_seconds=30) as watch:
        time.sleep(0.5)
        Outcome(status=status, rank=0).write(tmp_path)
        assert ranks.codes(seconds=10 if ends else 1.5) == ([-signal.SIGKILL] * 2 if ends else [None, None])
    assert watch.ended == ({0, 1} if ends else set())


def test_a_stopped_rank_is_the_cause_even_if_it_beat_last(tmp_path, ranks):
    """FAULTS row 22."""
    with Watch(ranks.run_file, num_processes=2, timeout_seconds=1) as watch:
        for rank in (1, 0):
            Pulse(heartbeat_file(tmp_path, rank)).alive()
        ranks.processes[0].send_signal(signal.SIGSTOP)
        assert ranks.codes(seconds=10)[0] == -signal.SIGKILL
    assert watch.hang is not None
    assert (watch.hang.rank, watch.hang.stopped, watch.hang.answered) == (0, True, (1,))
    assert watch.hang.seconds > 1
