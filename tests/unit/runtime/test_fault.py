"""The documented test hook: what it refuses, when it strikes, and that it strikes once."""

import errno
import os
import signal
import time

import pytest
import torch

from src.errors import ConfigError
from src.runtime import fault
from src.runtime.fault import KINDS, MARKER, from_environment

IMAGES = torch.zeros(2, 1, 4, 4)


@pytest.fixture
def injected(tmp_path, monkeypatch):
    """The fault that rank 1 of 2 gets from this value."""

    def make(text, *, rank=1):
        monkeypatch.setenv("HALFSTEP_FAULT", text)
        return from_environment(tmp_path, rank=rank, world_size=2)

    return make


@pytest.mark.parametrize(
    "text", ["kill", "kill:1", "kill:1:", "burn:0:3", "kill:2:3", "kill:0:0", "kill:-1:3", "kill:0:3:4", " kill:0:3", "kill:0:1e3"]
)
def test_a_value_that_could_never_strike_is_refused_by_every_rank(injected, text):
    for rank in (0, 1):
        with pytest.raises(ConfigError, match="HALFSTEP_FAULT=") as error:
            injected(text, rank=rank)
        assert text in str(error.value)


def test_without_the_variable_there_is_none(tmp_path, monkeypatch):
    monkeypatch.delenv("HALFSTEP_FAULT", raising=False)
    assert from_environment(tmp_path, rank=0, world_size=1) is None


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_for_one_rank_and_one_run_directory(injected, tmp_path, kind):
    assert injected(f"{kind}:1:3", rank=0) is None
    assert injected(f"{kind}:1:3") is not None
    (tmp_path / MARKER).touch()
    assert injected(f"{kind}:1:3") is None


def test_it_strikes_at_its_step_and_never_again(injected, tmp_path):
    found = injected("raise:1:3")
    for step in (1, 2):
        found.strike(step, IMAGES)
    assert not (tmp_path / MARKER).exists()
    with pytest.raises(RuntimeError, match="at step 3"):
        found.strike(3, IMAGES)
    assert (tmp_path / MARKER).exists()
    found.strike(3, IMAGES)


def test_nan_spoils_every_pixel_of_the_batch(injected):
    images = torch.ones(2, 1, 4, 4)
    injected("nan:1:1").strike(1, images)
    assert images.isnan().all()


def test_running_out_of_memory_is_torchs_own_error(injected):
    with pytest.raises(torch.OutOfMemoryError):
        injected("oom:1:1").strike(1, IMAGES)


def test_the_disk_is_full_for_the_next_checkpoint_only(injected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", os.fsync)  # restores it whatever happens
    injected("enospc:1:1").strike(1, IMAGES)
    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(OSError, match="No space left") as error:
            os.fsync(file.fileno())
        os.fsync(file.fileno())
    assert error.value.errno == errno.ENOSPC


def test_a_slow_rank_sleeps_three_steps_in_each(injected, monkeypatch):
    slept = []
    monkeypatch.setattr(fault.time, "sleep", slept.append)
    found = injected("slow:1:2")
    for step in range(1, 5):
        found.strike(step, IMAGES)
        began = time.monotonic()
        while time.monotonic() - began < 0.02:  # the step itself
            pass
    assert len(slept) == 2
    assert all(seconds >= 0.06 for seconds in slept)


def test_some_end_the_process_on_the_spot(injected, tmp_path, monkeypatch):
    ends = []
    monkeypatch.setattr(os, "kill", lambda process, number: ends.append((process, number)))
    monkeypatch.setattr(os, "_exit", lambda code: ends.append(code))
    for text in ("kill:1:1", "exit:1:1"):
        injected(text).strike(1, IMAGES)
        (tmp_path / MARKER).unlink()
    assert ends == [(os.getpid(), signal.SIGKILL), 3]
