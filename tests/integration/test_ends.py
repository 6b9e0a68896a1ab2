"""How runs end: signals, crashes, refusals, and going on afterwards."""

import json
import signal
import time

import pytest
import torch

from src.checkpoint.load import load

from .conftest import PROJECT, TINY, Finished, Shell
from .ends import LONG, begin, check_end, end, processes_of, signal_rank, wait_for


def stop_with(shell: Shell, name: str, number: int, *args: str) -> Finished:
    """Start a long run, signal it after its first checkpoint, wait for the end."""
    process, run_dir = begin(shell, name, *args)
    process.send_signal(number)
    return end(process, run_dir)


@pytest.mark.parametrize(
    ("parallel", "number", "code"),
    [
        pytest.param("single", signal.SIGINT, 130, marks=pytest.mark.slow),  # test_faults sends it to a single process too
        pytest.param("single", signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param("ddp", signal.SIGINT, 130, marks=pytest.mark.slow),
        ("ddp", signal.SIGUSR1, 143),
    ],
)
def test_a_signal_ends_with_a_checkpoint_and_status_killed(shell, parallel, number, code):
    """D08, FAULTS row 4: nothing is lost, nothing is left, the status is true."""
    run = stop_with(shell, f"{parallel}-{number}", number, f"parallel={parallel}", "tracking.log_model=false")
    check_end(run, code=code, status="KILLED", shell=shell)
    saved = load(run.run_dir / run.result["checkpoint"]["last"])
    assert saved["state"]["step"] == run.result["steps"]
    assert run.result["failure"] is None
    assert "Traceback" not in run.out + run.err
    assert run.out.count(f"a signal asks to stop: saving a checkpoint of step {run.result['steps']}") == 1
    tags = shell.client().get_run(run.result["tracking"]["run_id"]).data.tags
    assert (tags.get("preempted") == "True") == (code == 143)


def test_a_killed_launcher_leaves_no_rank_behind_and_its_run_is_closed_by_the_next(shell):
    """B11, FAULTS rows 2 and 25: while it lives its directory is taken; once it is gone its run is KILLED."""
    process, run_dir = begin(shell, "orphans", "parallel=ddp", "tracking.log_model=false")
    wait_for(lambda: (run_dir / "tracking.json").exists())
    run_id = json.loads((run_dir / "tracking.json").read_text())["run_id"]
    second = shell.run("src.train", *LONG, "resume=auto", name="orphans")
    assert second.code == 2
    assert f"process {process.pid}" in second.err
    assert len(processes_of(run_dir)) == 2
    process.kill()
    process.communicate()
    wait_for(lambda: not processes_of(run_dir), seconds=5)
    assert shell.client().get_run(run_id).info.status == "RUNNING"
    shell.run("src.train", *TINY, "train.max_steps=1", "tracking.log_model=false", name="next").ok()
    closed = shell.client().get_run(run_id)
    assert (closed.info.status, closed.data.tags["reason"]) == ("KILLED", "its launcher was gone without a word")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_group_and_is_named(shell, rank):
    """FAULTS row 1, first half, at any time."""
    process, run_dir = begin(shell, f"lost-{rank}", "parallel=ddp", "tracking.log_model=false")
    signal_rank(run_dir, rank, signal.SIGKILL)
    wait_for(lambda: not processes_of(run_dir), seconds=5)
    run = end(process, run_dir)
    check_end(run, code=6, status="FAILED", shell=shell)
    assert run.result["reason"].startswith(f"rank {rank} was killed by signal 9, SIGKILL")
    assert (run.result["failure"]["rank"], run.result["failure"]["signal"]) == (rank, "SIGKILL")


@pytest.mark.parametrize("parallel", ["single", pytest.param("ddp", marks=pytest.mark.slow)])
def test_a_second_signal_is_obeyed_at_once_and_the_last_checkpoint_is_whole(shell, parallel):
    """FAULTS row 5: a rank that sleeps hears no request to stop; the second one ends it."""
    name = f"twice-{parallel}"
    process = shell.start("src.train", *LONG, f"parallel={parallel}", "tracking=none", f"hydra.run.dir={name}", HALFSTEP_FAULT="hang:0:40")
    run_dir = shell.directory / name
    wait_for(lambda: (run_dir / ".fault").exists())
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    run = end(process, run_dir, timeout=10)
    check_end(run, code=130, status="KILLED")
    assert load(run_dir / run.result["checkpoint"]["last"])["state"]["step"] == 32


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["single", "ddp"])
def test_a_signal_while_a_checkpoint_is_written_leaves_whole_ones(shell, parallel):
    """FAULTS row 6: ``load`` verifies every byte."""
    name = f"writing-{parallel}"
    process, run_dir = begin(shell, name, f"parallel={parallel}", "tracking=none")
    wait_for(lambda: list(run_dir.glob("checkpoints/*.tmp")))
    process.send_signal(signal.SIGTERM)
    run = end(process, run_dir)
    check_end(run, code=143, status="KILLED")
    for path in run_dir.glob("checkpoints/*.pt"):
        load(path)
    one_more = run.result["epochs"] + 1
    args = (*LONG, f"parallel={parallel}", "tracking=none", "resume=auto", f"train.epochs={one_more}")
    assert shell.run("src.train", *args, name=name).ok().result["steps"] == 32 * one_more


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_relative_paths_count_from_where_the_command_is_typed(shell, image_folder):
    """C04: also with Hydra's own change of directory, and in a sweep."""
    (shell.directory / "pictures").symlink_to(image_folder())
    for number, extra in enumerate([[], ["hydra.job.chdir=true"], ["-m"]]):
        where = f"hydra.sweep.dir=paths-{number}" if "-m" in extra else f"hydra.run.dir=paths-{number}"
        args = ["data=image_folder", "data.root=./pictures", "train.epochs=1", "train.batch_size=4", "tracking=none", where, *extra]
        process = shell.start("src.train", *args)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
