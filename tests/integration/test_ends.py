"""How runs end: signals, crashes, refusals, and going on afterwards."""

import json
import os
import signal
import time

import pytest
import torch

from src.checkpoint.load import load

from .conftest import PROJECT, TINY, Finished, Shell

LONG = (
    "data=synthetic",
    "data.size=512",
    "data.val_size=32",
    "data.pixels=8",
    "train.epochs=2000",
    "train.batch_size=16",
    "train.log_every=4",
)


def wait_for(condition, *, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)


def stop_with(shell: Shell, name: str, number: int, *args: str) -> Finished:
    """Start a long run, signal it after its first checkpoint, wait for the end."""
    process = shell.start("src.train", *LONG, *args, f"hydra.run.dir={name}")
    run_dir = shell.directory / name
    wait_for(lambda: list(run_dir.glob("checkpoints/step-*.pt")) or process.poll() is not None)
    process.send_signal(number)
    out, err = process.communicate(timeout=90)
    return Finished(process.returncode, out, err, run_dir)


def processes_of(run_dir) -> list[int]:
    found = []
    for path in os.listdir("/proc"):
        if path.isdigit():
            try:
                with open(f"/proc/{path}/cmdline", "rb") as file:
                    if str(run_dir / "run.yaml").encode() in file.read():
                        found.append(int(path))
            except OSError:
                pass
    return found


@pytest.mark.parametrize(
    ("parallel", "number", "code"),
    [("single", signal.SIGINT, 130), ("single", signal.SIGTERM, 143), ("ddp", signal.SIGINT, 130), ("ddp", signal.SIGUSR1, 143)],
)
def test_a_signal_ends_with_a_checkpoint_and_status_killed(shell, parallel, number, code):
    """D08, FAULTS row 4: nothing is lost, nothing is left, the status is true."""
    run = stop_with(shell, f"{parallel}-{number}", number, f"parallel={parallel}", "tracking.log_model=false")
    result = run.result
    assert run.code == result["exit_code"] == code, run.out + run.err
    assert result["status"] == "KILLED"
    saved = load(run.run_dir / result["checkpoint"]["last"])
    assert saved["state"]["step"] == result["steps"]
    assert not processes_of(run.run_dir)
    assert "Traceback" not in run.out + run.err
    status = {r.info.run_id: r.info.status for r in shell.runs()}
    assert status[result["tracking"]["run_id"]] == "KILLED"


def test_a_killed_launcher_leaves_no_rank_behind(shell):
    """B11, FAULTS row 2."""
    process = shell.start("src.train", *LONG, "parallel=ddp", "tracking=none", "hydra.run.dir=orphans")
    run_dir = shell.directory / "orphans"
    wait_for(lambda: (run_dir / "metrics.jsonl").exists())
    assert len(processes_of(run_dir)) == 2
    process.kill()
    process.communicate()
    wait_for(lambda: not processes_of(run_dir), seconds=10)


def test_a_killed_rank_ends_the_group_and_is_named(shell):
    """FAULTS row 1, first half."""
    process = shell.start("src.train", *LONG, "parallel=ddp", "tracking=none", "hydra.run.dir=lost")
    run_dir = shell.directory / "lost"
    wait_for(lambda: (run_dir / "metrics.jsonl").exists())
    os.kill(max(processes_of(run_dir)), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    result = json.loads((run_dir / "result.json").read_text())
    assert process.returncode == result["exit_code"] == 6, out + err
    assert "was killed by signal 9" in result["reason"]
    assert not processes_of(run_dir)


@pytest.mark.parametrize("parallel", ["single", "ddp"])
def test_resume_goes_on_as_if_nothing_had_happened(shell, parallel):
    """E01, E08, E10, E12, F05, D07: float16 with its scaler; weights, scale, rates and order equal the uninterrupted run's."""
    scaler = ("precision.dtype=float16", "precision.scaler.growth_interval=2", "precision.scaler.init_scale=16")
    schedule = ("schedule=constant", "schedule.warmup_steps=9")
    common = (*TINY, "train.epochs=3", *scaler, *schedule, f"parallel={parallel}", "tracking.log_model=false")
    whole = shell.run("src.train", *common, "tracking=none", name=f"{parallel}-whole").ok()
    part = shell.run("src.train", *common, "train.max_steps=6", name=f"{parallel}-part").ok()
    assert part.result["steps"] == 6  # in the middle of the second epoch
    resumed = shell.run("src.train", *common, f"resume={parallel}-part", name=f"{parallel}-resumed").ok()
    assert resumed.result["tracking"]["run_id"] == part.result["tracking"]["run_id"]
    assert resumed.result["best"]["value"] == whole.result["best"]["value"]
    states = [load(run.run_dir / run.result["checkpoint"]["last"]) for run in (whole, resumed)]
    for name, weight in states[0]["model"].items():
        assert torch.equal(weight, states[1]["model"][name]), name
    assert states[0]["precision"] == states[1]["precision"]
    assert whole.history("train/loss")[6:] == resumed.history("train/loss")
    assert whole.history("train/lr")[6:] == resumed.history("train/lr")
    steps = [m.step for m in shell.client().get_metric_history(part.result["tracking"]["run_id"], "train/loss")]
    assert sorted(steps) == list(range(1, 13))


def test_four_launches_at_once_on_a_fresh_store(shell):
    """B01, C03, D10: free ports, own directories, one migrated store, nothing in the current directory but outputs/."""
    fresh = f"sqlite:///{shell.directory / 'fresh' / 'store.db'}"
    args = [*TINY, "train.max_steps=1", "parallel=ddp", "tracking.log_model=false"]
    processes = [shell.start("src.train", *args, "name=same", MLFLOW_TRACKING_URI=fresh) for _ in range(4)]
    ends = [(p.communicate(timeout=240), p.returncode) for p in processes]
    assert [code for _, code in ends] == [0] * 4, ends
    results = [json.loads(p.read_text()) for p in (shell.directory / "outputs").glob("*/*/result.json")]
    assert len(results) == 4
    assert len({r["tracking"]["run_id"] for r in results}) == 4


def test_wrong_input_creates_nothing_and_is_quick(shell):
    """C08, C09, H01: exit 2, a few lines, no traceback, no torch."""
    before = sorted(p.name for p in shell.directory.iterdir())
    for arguments, expected in [
        (["optim.lrr=0.1"], "optim.lr"),
        (["++train.epoch=1"], "train.epochs"),
        (["precision=fp17"], "fp32"),
        (["train.batch_size=7", "parallel=ddp"], "8"),
        (["parallel=ddp", "parallel.backend=nccl", "device=cpu"], "gloo"),
        (["-m", "seed=1,x"], "seed"),
        (["-m", "optim.lr=0.1", "tags=[a,b"], "tags"),
    ]:
        process = shell.start("src.train", *arguments, PYTHONPROFILEIMPORTTIME="1")
        out, err = process.communicate(timeout=60)
        lines = [line for line in err.splitlines() if not line.startswith("import time:")]
        assert process.returncode == 2, (arguments, out, err)
        assert 1 <= len(lines) <= 10
        assert any(expected in line for line in lines)
        assert "Traceback" not in err
        imported = {line.split("|")[-1].strip().split(".")[0] for line in err.splitlines() if line.startswith("import time:")}
        assert "hydra" in imported
        assert not imported & {"torch", "mlflow", "numpy", "torchvision"}
    assert sorted(p.name for p in shell.directory.iterdir()) == before


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_missing_data_is_exit_3_with_the_path(shell, kind):
    root = shell.directory / f"{kind} images"
    if kind == "empty":
        root.mkdir()
    run = shell.run("src.train", "data=image_folder", f"data.root='{root.name}'", "tracking=none", name=f"data-{kind}")
    assert run.code == 3
    assert str(root) in run.out
    assert "Traceback" not in run.out + run.err
    assert PROJECT.exists()


def test_relative_paths_count_from_where_the_command_is_typed(shell, image_folder):
    """C04: also with Hydra's own change of directory, and in a sweep."""
    (shell.directory / "pictures").symlink_to(image_folder())
    for number, extra in enumerate([[], ["hydra.job.chdir=true"], ["-m"]]):
        where = f"hydra.sweep.dir=paths-{number}" if "-m" in extra else f"hydra.run.dir=paths-{number}"
        args = ["data=image_folder", "data.root=./pictures", "train.epochs=1", "train.batch_size=4", "tracking=none", where, *extra]
        process = shell.start("src.train", *args)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
