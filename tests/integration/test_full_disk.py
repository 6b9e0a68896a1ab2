"""A disk that fills up: a small tmpfs, which needs root."""

import os
import signal
import subprocess

import pytest

from src.checkpoint.load import load

from .ends import LONG, check_end, end, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")]


@pytest.fixture
def disk(tmp_path):
    """5 MiB: room for a few checkpoints of 0.7 MiB."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(tmp_path)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk can't be mounted here: {done.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def fill(disk):
    with (disk / "full").open("wb", buffering=0) as file:
        for size in (2**16, 2**10):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def begin_on(disk, shell, *args):
    """A run with a checkpoint, on a disk that is full now."""
    run_dir = disk / "run"
    process = shell.start("src.train", *LONG, "tracking=none", *args, f"hydra.run.dir={run_dir}", PYTHONUNBUFFERED="1")
    wait_for(lambda: list(run_dir.glob("checkpoints/step-*.pt")) or process.poll() is not None)
    fill(disk)
    return process, run_dir


def test_training_ends_after_so_many_failures_with_the_last_good_checkpoint(disk, shell):
    """FAULTS rows 8 and 9: the reason is told, also in result.json, and lost metric points are counted."""
    process, run_dir = begin_on(disk, shell, "save.max_failures=2")
    run = end(process, run_dir)
    check_end(run, code=5, status="FAILED")
    assert "No space left on device" in run.result["reason"]
    assert 3 <= run.out.count("the checkpoint of step") <= 4  # one more can be under way
    assert run.out.count("metric points can't be written") == 1
    assert run.out.count("can't be written any more") <= 1
    assert run.result["dropped_points"] > 0
    assert "Traceback" not in run.out + run.err
    good = load(run_dir / run.result["checkpoint"]["last"])
    (disk / "full").unlink()
    again = shell.run(
        "src.train", *LONG, "tracking=none", f"train.max_steps={good['state']['step'] + 40}", "resume=auto", name=str(run_dir)
    ).ok()  # fmt: skip
    assert again.result["steps"] == good["state"]["step"] + 40


def test_training_goes_on_when_there_is_room_again(disk, shell):
    process, run_dir = begin_on(disk, shell, "save.max_failures=10000")
    assert any("could not be written" in line for line in process.stdout)  # the log file is on the full disk
    before = set(run_dir.glob("checkpoints/step-*.pt"))
    (disk / "full").unlink()
    wait_for(lambda: set(run_dir.glob("checkpoints/step-*.pt")) - before)
    process.send_signal(signal.SIGTERM)
    run = end(process, run_dir)
    check_end(run, code=143, status="KILLED")
    assert run.result["dropped_points"] > 0
    steps = [step for step, _ in run.history("train/loss")]
    assert steps[-1] - steps[0] > 4 * len(steps), "no point is missing"
