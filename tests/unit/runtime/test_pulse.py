"""Signs of life: what a rank writes is what the launcher reads, and the loop's batches are left as they are."""

import os
import time
from types import SimpleNamespace

import pytest

from src.runtime.pulse import SILENT, Pulse, read_beat


def batches(count, *, seconds=0.0):
    for number in range(count):
        time.sleep(seconds)
        yield SimpleNamespace(images=number)


def test_the_batches_pass_and_each_is_a_beat(tmp_path):
    position, beats = SimpleNamespace(step=6), []
    pulse = Pulse(tmp_path / "ranks" / "0" / "heartbeat")
    assert read_beat(tmp_path / "ranks" / "0" / "heartbeat") is None
    began = time.monotonic()
    for number, batch in enumerate(pulse.follow(batches(3, seconds=0.02), position)):
        assert batch.images == number
        beats.append(read_beat(tmp_path / "ranks" / "0" / "heartbeat"))
        position.step += 1
    assert [beat.step for beat in beats] == [6, 7, 8]
    assert began < beats[0].time < beats[1].time < beats[2].time < time.monotonic()


def test_busy_is_data_and_forward_pass_and_nothing_else(tmp_path):
    """The rest of a step waits for other ranks: counted, every rank would look as slow as the slowest."""
    path = tmp_path / "heartbeat"
    pulse, slept = Pulse(path), 0.05
    for _ in pulse.follow(batches(2, seconds=slept), SimpleNamespace(step=0)):
        time.sleep(slept)
        pulse.forward_done()
        time.sleep(slept)  # the backward pass
        pulse.alive()
    assert read_beat(path).busy == pytest.approx(4 * slept, abs=slept)


def test_a_fault_strikes_before_the_beat_of_its_step(tmp_path):
    """A rank that hangs there has the oldest beat."""
    struck = []
    path = tmp_path / "heartbeat"
    pulse = Pulse(path, fault=SimpleNamespace(strike=lambda step, images: struck.append((step, images, read_beat(path)))))
    list(pulse.follow(batches(1), SimpleNamespace(step=4)))
    assert struck == [(5, 0, None)]


def test_a_full_disk_does_not_end_the_training(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    pulse = Pulse(tmp_path / "heartbeat")
    monkeypatch.setattr(os, "pwrite", full)
    assert len(list(pulse.follow(batches(2), SimpleNamespace(step=0)))) == 2


def test_without_a_launcher_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    list(SILENT.follow(batches(2), SimpleNamespace(step=0)))
    SILENT.alive()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"half"])
def test_a_file_that_is_no_beat_is_none(tmp_path, content):
    (tmp_path / "heartbeat").write_bytes(content)
    assert read_beat(tmp_path / "heartbeat") is None
    assert read_beat(tmp_path / "missing") is None
