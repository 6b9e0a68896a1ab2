"""Runs of the real command that are stopped and gone on with: the bits of the undisturbed run, with one rank and two."""

import json
import signal

import pytest
import torch

from src.checkpoint.load import load

from .ends import begin, check_end, end, processes_of, wait_for

SETTINGS = (
    "data=synthetic", "data.size=320", "data.val_size=32", "data.pixels=8", "data.classes=4", "data.augment.flip=true",
    "train.batch_size=16", "train.log_every=7", "train.ema_decay=0.9", "schedule=cosine", "schedule.warmup_steps=5", "optim.lr=0.01",
    "precision=amp", "precision.dtype=float16", "save.keep=99", "save.every_steps=7", "train.epochs=3", "tracking.log_model=false",
    "model=custom", "model.factory=nets:small",
)  # fmt: skip
"""Three epochs of 20 steps."""
NETS = """
from torch import nn

def small(num_classes, channels):
    body = [nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(128, num_classes))
"""
"""Batch norm, whose statistics are each rank's own in mid-epoch, and dropout."""


@pytest.fixture(scope="module")
def whole(shell):
    """The undisturbed run, by parallel mode."""
    (shell.directory / "nets.py").write_text(NETS)
    found = {}

    def run(parallel):
        if parallel not in found:
            found[parallel] = shell.run("src.train", *SETTINGS, f"parallel={parallel}", name=f"whole-{parallel}").ok()
        return found[parallel]

    return run


def points(run):
    lines = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    return {(line["step"], line["name"]): line["value"] for line in lines if not line["name"].startswith("perf/")}


def newest(run):
    return load(run.run_dir / run.result["checkpoint"]["last"])


def assert_same_bits(one, other, where=""):
    """Nested dicts and lists with equal tensors and values."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same_bits(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_same_bits(*pair, f"{where}/{number}")
    else:
        assert one == other, where


def assert_same_run(resumed, whole):
    one, other = newest(resumed), newest(whole)
    for part in ("model", "ema", "optimizer", "schedule", "precision", "ranks"):
        assert_same_bits(one[part], other[part], part)
    for name in ("step", "updates", "epoch", "best_value", "best_step", "best_epoch", "bad_evaluations"):
        assert one["state"][name] == other["state"][name], name
    assert resumed.result["objective"] == whole.result["objective"]


@pytest.mark.parametrize("parallel", [pytest.param("single", marks=pytest.mark.slow), "ddp"])
def test_after_sigterm_in_mid_epoch(shell, whole, parallel):
    """FAULTS row 4: no step is lost, and the journal of both halves is that of the undisturbed run."""
    name = f"stopped-{parallel}"
    undisturbed = whole(parallel)
    process = shell.start("src.train", *SETTINGS, f"parallel={parallel}", f"hydra.run.dir={name}")
    run_dir = shell.directory / name
    wait_for(lambda: list(run_dir.glob("checkpoints/step-*.pt")) or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    stopped = end(process, run_dir)
    check_end(stopped, code=143, status="KILLED", shell=shell)
    before = points(stopped)
    resumed = shell.run("src.train", *SETTINGS, f"parallel={parallel}", "resume=auto", name=name).ok()
    assert_same_run(resumed, undisturbed)
    assert before.items() <= points(resumed).items()
    assert points(resumed) == points(undisturbed)
    assert resumed.result["tracking"]["run_id"] == stopped.result["tracking"]["run_id"]


@pytest.mark.slow
def test_a_run_that_ended_in_mid_epoch_goes_on_from_its_own_batch_statistics(shell, whole):
    """``train.max_steps`` ends with an evaluation on the mean over ranks, which must not take the place of each rank's own."""
    settings = (*SETTINGS, "parallel=ddp", "schedule=constant", "train.max_steps=33")
    one = shell.run("src.train", *settings, name="to-33").ok()
    shell.run("src.train", *settings, "train.max_steps=27", name="to-27").ok()
    resumed = shell.run("src.train", *settings, "resume=to-27", name="to-33-resumed").ok()
    for part in ("model", "ema", "optimizer", "ranks"):
        assert_same_bits(newest(resumed)[part], newest(one)[part], part)
    assert resumed.result["metrics"]["val/loss"] == one.result["metrics"]["val/loss"]
    evaluated = shell.run(
        "src.evaluate", f"checkpoint={one.run_dir.name}/checkpoints/step-00000033.pt", "trust_code=true", name="at-33"
    ).ok()
    assert evaluated.result["metrics"]["val/loss"] == one.result["metrics"]["val/loss"]


@pytest.mark.slow
def test_after_sigkill_from_the_last_checkpoint(shell, whole):
    """FAULTS row 1: of both ranks' own statistics and random numbers, in mid-epoch, into a new directory."""
    undisturbed = whole("ddp")
    process, run_dir = begin_killed(shell)
    killed = end(process, run_dir)
    check_end(killed, code=6, status="FAILED", shell=shell)
    resumed = shell.run("src.train", *SETTINGS, "parallel=ddp", f"resume={run_dir.name}", name="after-kill").ok()
    assert_same_run(resumed, undisturbed)
    assert points(resumed).items() <= points(undisturbed).items()


def begin_killed(shell):
    process = shell.start("src.train", *SETTINGS, "parallel=ddp", "hydra.run.dir=killed", HALFSTEP_FAULT="kill:1:33")
    return process, shell.directory / "killed"


@pytest.mark.slow
def test_another_network_is_refused_before_anything_is_created(shell, whole):
    """FAULTS row 12."""
    source = whole("ddp").run_dir
    before = sorted(shell.directory.rglob("*"))
    refused = shell.run("src.train", *SETTINGS[:-2], "optim=sgd", f"resume={source.name}", name="another")
    assert refused.code == 5, refused.out + refused.err
    for said in ("model.name was custom and is digits_cnn now", "model.factory was nets:small", "optim.name was adamw and is sgd now"):
        assert said in refused.err
    assert len(refused.err.splitlines()) == 1
    assert sorted(shell.directory.rglob("*")) == before


@pytest.mark.slow
def test_another_number_of_ranks(shell, whole):
    """E16, E17, FAULTS row 12: two ranks, then one, then two; the same global batches and rates, one warning each time."""
    files = whole("ddp").run_dir.glob("checkpoints/step-*.pt")  # one may be left out when the next one comes too soon
    source = min(files, key=lambda path: abs(int(path.stem.removeprefix("step-")) - 28))
    one = shell.run("src.train", *SETTINGS, "parallel=single", f"resume='{source}'", "train.max_steps=37", name="one").ok()
    assert one.out.count("random numbers") == 1
    two = shell.run("src.train", *SETTINGS, "parallel=ddp", "resume=one", name="two").ok()
    assert two.out.count("random numbers") == 1
    expected = dict(whole("ddp").history("train/lr"))
    assert (
        dict(one.history("train/lr") + two.history("train/lr")).items()
        >= {step: value for step, value in expected.items() if step > 37}.items()
    )
    assert two.result["steps"] == 60
    for run, keys in ((one, {"parallel.name": ["ddp", "single"]}), (two, {"parallel.name": ["single", "ddp"]})):
        (resumed,) = json.loads((run.run_dir / "drift.json").read_text())["resumes"]
        assert keys.items() <= resumed["keys"].items()
    (stored,) = [run for run in shell.runs() if run.info.run_id == one.result["tracking"]["run_id"]]
    assert stored.data.tags["drift.parallel.name"] == "ddp -> single"
    assert "drift.json" in [file.path for file in shell.client().list_artifacts(stored.info.run_id)]
    assert two.result["epochs"] == 3


@pytest.mark.slow
def test_leftovers_and_newest(shell):
    """I06, FAULTS rows 5 and 10: what a killed writer left is gone, and a cut-off newest checkpoint is passed over."""
    process, run_dir = begin(shell, "cut", "tracking=none")
    process.kill()
    process.communicate()
    wait_for(lambda: not processes_of(run_dir))
    directory = run_dir / "checkpoints"
    (directory / "step-99999999.tmp").write_bytes(b"half")
    newest = max(directory.glob("step-*.pt"))
    cut = directory / "step-99999998.pt"
    cut.write_bytes(newest.read_bytes()[:-100])
    run = shell.run(
        "src.train", "data=synthetic", "data.size=512", "data.val_size=32", "data.pixels=8", "train.batch_size=16", "train.log_every=4",
        "train.epochs=1", "tracking=none", "resume=auto", name="cut",
    ).ok()  # fmt: skip
    assert "falling back" in run.out
    assert not list(directory.glob("*.tmp"))
