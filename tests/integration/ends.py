"""What every end is checked for (FAULTS.md): exit code, result and outcome files, MLflow status, and that nothing is left behind."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from .conftest import Finished, Shell

LONG = (
    "data=synthetic",
    "data.size=512",
    "data.val_size=32",
    "data.pixels=8",
    "train.epochs=2000",
    "train.batch_size=16",
    "train.log_every=4",
)


def wait_for(condition: Callable[[], object], *, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)


def begin(shell: Shell, name: str, *args: str, **env: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a run without an end and wait for its first checkpoint."""
    process = shell.start("src.train", *LONG, *args, f"hydra.run.dir={name}", **env)
    run_dir = shell.directory / name
    wait_for(lambda: list(run_dir.glob("checkpoints/step-*.pt")) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process, run_dir


def end(process: subprocess.Popen[str], run_dir: Path, *, timeout: float = 90) -> Finished:
    out, err = process.communicate(timeout=timeout)
    return Finished(process.returncode, out, err, run_dir)


def processes_of(run_dir: Path) -> dict[int, int]:
    """The live ranks of a run: rank -> process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                if str(run_dir / "run.yaml").encode() in command:
                    environment = dict(
                        line.split(b"=", 1) for line in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") if b"=" in line
                    )
                    found[int(environment[b"RANK"])] = int(name)
            except (OSError, KeyError):
                pass
    return found


def signal_rank(run_dir: Path, rank: int, number: signal.Signals) -> None:
    os.kill(processes_of(run_dir)[rank], number)


def outcomes_of(run_dir: Path) -> dict[int, str]:
    """Rank -> status, of the ranks that could still write."""
    return {int(path.parent.name): json.loads(path.read_text())["status"] for path in run_dir.glob("ranks/*/outcome.json")}


def check_end(run: Finished, *, code: int, status: str, shell: Shell | None = None) -> None:
    """The first four of the five checks; the fifth, a resume, is each test's own. Without ``shell`` the run had no tracker."""
    assert run.code == run.result["exit_code"] == code, run.out + run.err
    assert run.result["status"] == status
    if shell is not None:
        run_id = run.result["tracking"]["run_id"]
        assert {r.info.run_id: r.info.status for r in shell.runs()}[run_id] == status
    assert not processes_of(run.run_dir)
    leftovers = [path for path in run.run_dir.rglob("*") if path.suffix == ".tmp" or path.name == "heartbeat" or ".json." in path.name]
    assert not leftovers
