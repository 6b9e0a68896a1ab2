import json
import subprocess
import sys

from .conftest import PROJECT


def test_a_save_that_is_killed_costs_one_save_at_most(tmp_path):
    """E06: SIGKILL at random times while checkpoints are written one after the other, thirty times."""
    command = [sys.executable, "-m", "tests.integration.killed_saves", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] >= 30
    assert found["half_written"] > 0  # or nothing was shown
