"""Kill a rank or the launcher at random times, and look for anything left behind.

    python benchmarks/kills.py --times 50 [--modes ddp single] [--seed 0] [--jobs 1] [--out benchmarks/kills.json]

Each round starts a run of two gloo ranks (or of one process) on a CPU that writes a checkpoint every seven steps in the background,
sends SIGKILL to the launcher or to one rank at a random time between the first and the last checkpoint (in one round of five: after
the start), and checks: all processes of the run are gone within 5 s of the end, a killed rank is exit code 6 with result.json, every
checkpoint is whole, no temporary file lies about (after a killed launcher: none once the run was resumed), and ``resume=auto`` with
the same command finishes with the weights of an undisturbed run, bit for bit. Rounds that the file of an earlier call has stay.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import nn

from src.checkpoint.load import load

PROJECT = Path(__file__).parents[1]
ARGS = (
    "data=synthetic", "data.size=128", "data.val_size=32", "data.pixels=8", "train.epochs=20", "train.batch_size=16", "train.log_every=1",
    "device=cpu", "precision=fp32", "tracking=none", "save.every_steps=7",
    "model=custom", "model.factory=kills:wide_net",
)  # fmt: skip
MODES = {"ddp": ("parallel=ddp", "parallel.num_processes=2"), "single": ("parallel=single",)}
TARGETS = {"ddp": ["launcher", "rank 0", "rank 1"], "single": ["launcher"]}
GONE_SECONDS = 5.0


def main() -> None:
    """Run the rounds and write what was found after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=["ddp"], help="each round takes one at random; name one twice for more"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="rounds at once; two cores each are plenty")
    parser.add_argument("--out", type=Path, default=PROJECT / "benchmarks/kills.json")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        seconds, expected = {}, {}
        for mode in dict.fromkeys(options.modes):
            process = start(Path(folder) / mode, mode)
            wait_for_checkpoint(process, Path(folder) / mode)
            began = time.time()  # the clock of files
            if (code := process.wait()) != 0:
                sys.exit(f"an undisturbed run of {mode} ended with exit code {code}")
            saved = max(path.stat().st_mtime for path in (Path(folder) / mode).glob("checkpoints/step-*.pt"))
            seconds[mode], expected[mode] = saved - began, last_weights(Path(folder) / mode)
        plans = []
        for _ in range(options.times):
            mode = chance.choice(options.modes)
            plans.append((mode, chance.choice(TARGETS[mode]), chance.random() < 0.2, chance.uniform(0, seconds[mode])))

        def one(number: int) -> dict[str, Any]:
            mode, target, early, after = plans[number]
            return one_round(Path(folder) / str(number), mode, target=target, early=early, after=after, expected=expected[mode])

        rounds: list[dict[str, Any]] = json.loads(options.out.read_text())["rounds"] if options.out.exists() else []
        with ThreadPoolExecutor(options.jobs) as pool:
            for done in as_completed([pool.submit(one, number) for number in range(options.times)]):
                rounds.append(done.result())
                report = {
                    "times": len(rounds),
                    "killed_while_writing": sum(entry["writing"] for entry in rounds),
                    "with_problems": sum(bool(entry["problems"]) for entry in rounds),
                    "rounds": rounds,
                }
                options.out.write_text(json.dumps(report, indent=1) + "\n")
                sys.stdout.write(f"{len(rounds)} {json.dumps(rounds[-1])}\n")
                sys.stdout.flush()
    sys.exit(bool(report["with_problems"]))


def wide_net(num_classes: int, channels: int) -> nn.Module:
    """Quick to train, with a state of 30 MB, so that a checkpoint is being written much of the time."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * 64, 4096), nn.ReLU(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, num_classes)
    )


def one_round(run_dir: Path, mode: str, *, target: str, early: bool, after: float, expected: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Kill ``target`` so many seconds after the first checkpoint, or after the start if ``early``; resume; compare."""
    process = start(run_dir, mode)
    if not early:
        wait_for_checkpoint(process, run_dir)
    time.sleep(after)
    writing = bool(list(run_dir.glob("checkpoints/*.tmp")))
    killed = kill(process, run_dir, target)
    at = time.monotonic()
    code = end(process)
    problems = [] if code is not None else ["the run did not end"]
    while processes_of(run_dir) and time.monotonic() - at < 60:
        time.sleep(0.02)
    gone = time.monotonic() - at
    if killed and gone > GONE_SECONDS + (2.0 if target != "launcher" else 0.0):  # the launcher writes its results too
        problems.append(f"processes were left for {gone:.1f} s")
    if killed and target != "launcher":
        result = json.loads((run_dir / "result.json").read_text())
        if code != 6 or result["exit_code"] != 6:
            problems.append(f"exit code {code}, result {result['exit_code']}: {result['reason']}")
        problems += leftovers(run_dir)
    step = broken_checkpoints(run_dir, problems)
    if (again := end(start(run_dir, mode, "resume=auto"))) != 0:
        problems.append(f"the resumed run ended with {again}")
    else:
        problems += leftovers(run_dir)
        weights = last_weights(run_dir)
        if not all(torch.equal(weight, weights[name]) for name, weight in expected.items()):
            problems.append("the resumed run has other weights than an undisturbed one")
    return {
        "mode": mode, "target": target, "early": early, "writing": writing,
        "after_seconds": round(after, 2), "killed": killed, "exit_code": code, "gone_seconds": round(gone, 2),
        "last_checkpoint": step, "problems": problems,
    }  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code, or None if the process had to be killed."""
    try:
        return process.wait(timeout=180)
    except subprocess.TimeoutExpired:
        process.kill()
        return None


def wait_for_checkpoint(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    """Until the run has written one, or has ended."""
    while process.poll() is None and not list(run_dir.glob("checkpoints/step-*.pt")):
        time.sleep(0.02)


def start(run_dir: Path, mode: str, *args: str) -> subprocess.Popen[bytes]:
    """One run in a directory of its own."""
    paths = (str(PROJECT), str(PROJECT / "benchmarks"), os.environ.get("PYTHONPATH", ""))
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)), OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "src.train", *ARGS, *MODES[mode], *args, f"hydra.run.dir={run_dir}"]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(process: subprocess.Popen[bytes], run_dir: Path, target: str) -> bool:
    """SIGKILL to the launcher or a rank; False if the run ended before."""
    while process.poll() is None:
        pid = process.pid if target == "launcher" else processes_of(run_dir).get(int(target.split()[1]))
        if pid is not None:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return True
        time.sleep(0.02)
    return False


def processes_of(run_dir: Path) -> dict[int, int]:
    """Rank -> process of the ranks that are alive; their command line names the run."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if str(run_dir / "run.yaml").encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                found[int(next(line for line in environment if line.startswith(b"RANK=")).removeprefix(b"RANK="))] = int(name)
        except (OSError, StopIteration):  # it has ended, or was not a rank yet
            pass
    return found


def leftovers(run_dir: Path) -> list[str]:
    """Temporary files."""
    suspicious = (path for path in run_dir.rglob("*") if path.suffix == ".tmp" or path.name == "heartbeat" or ".json." in path.name)
    return [f"left behind: {path.relative_to(run_dir)}" for path in suspicious]


def broken_checkpoints(run_dir: Path, problems: list[str]) -> int | None:
    """Check every checkpoint's digest; returns the newest step."""
    newest = None
    for path in sorted(run_dir.glob("checkpoints/*.pt")):
        try:
            newest = load(path)["state"]["step"] if path.name != "best.pt" else newest
        except Exception as error:
            problems.append(f"{path.name}: {error}")
    return newest


def last_weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """The model of the run's newest checkpoint."""
    last = json.loads((run_dir / "result.json").read_text())["checkpoint"]["last"]
    weights: dict[str, torch.Tensor] = load(run_dir / last)["model"]
    return weights


if __name__ == "__main__":
    main()
