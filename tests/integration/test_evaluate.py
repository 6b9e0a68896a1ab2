"""``python -m src.evaluate``: exact on any number of ranks, and several models and precisions side by side in one table."""

import json

import pytest
from PIL import Image

from .conftest import TINY

PRECISIONS = {"fp32": "float32", "amp": "bfloat16", "bf16": "bfloat16", "o3": "bfloat16"}


@pytest.fixture(scope="module")
def runs(shell):
    """Two small models, the second one's directory with a space in its name."""
    arguments = (*TINY, "data.classes=7", "data.val_size=31", "tracking=none", "device=cpu")
    return [shell.run("src.train", *arguments, f"seed={seed}", name=name).ok() for seed, name in ((1, "one"), (2, "the other"))]


@pytest.fixture(scope="module")
def sweep(shell, runs):
    """Both models in four precisions."""
    names = ",".join(f"'{run.run_dir.name}'" for run in runs)
    arguments = (f"precision={','.join(PRECISIONS)}", f"checkpoint={names}", "tracking=none", "hydra.sweep.dir=measured")
    process = shell.start("src.evaluate", "-m", *arguments)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    return out


def test_one_table_of_models_and_precisions(sweep, shell):
    """Each row shows what its job's result.json says, and the dtype that was really computed."""
    lines = sweep.splitlines()
    start = max(number for number, line in enumerate(lines) if line.startswith("sweep directory"))
    assert lines[start] == f"sweep directory  {shell.directory / 'measured'}"
    assert lines[start + 1] == "all jobs         tracking=none"
    columns = "job checkpoint precision accuracy top5 loss ece computed in images/s status directory"
    assert " ".join(lines[start + 2].split()) == columns
    rows = lines[start + 3 :]
    assert len(rows) == 2 * len(PRECISIONS)
    for number, row in enumerate(rows):
        result = json.loads((shell.directory / "measured" / str(number) / "result.json").read_text())
        name = ("one", "the other")[number % 2]
        mode = list(PRECISIONS)[number // 2]
        measures = [f"{result['metrics'][f'val/{metric}']:.4f}" for metric in ("accuracy", "top5", "loss", "ece")]
        speed = f"{result['samples_per_second']:,.0f}"
        assert row.split() == [str(number), *name.split(), mode, *measures, PRECISIONS[mode], speed, "FINISHED", str(number)]


def test_the_best_checkpoint_in_the_precision_of_the_run_gives_the_runs_own_numbers(runs, sweep, shell):
    for number, run in enumerate(runs):
        job = 2 * list(PRECISIONS).index("amp") + number
        files = [json.loads((where / "evaluation.json").read_text()) for where in (run.run_dir, shell.directory / "measured" / str(job))]
        assert files[0] == files[1]


@pytest.mark.slow
def test_three_ranks_give_the_same_bits_as_one(runs, shell):
    """31 images on three ranks, with another batch size: every image once, and the same calibration, bin by bin."""
    arguments = ("parallel=ddp", "parallel.num_processes=3", "train.batch_size=12", "tracking=none")
    three = shell.run("src.evaluate", "checkpoint=one", *arguments, name="three").ok()
    files = [json.loads((run.run_dir / "evaluation.json").read_text()) for run in (runs[0], three)]
    assert files[0] == files[1]
    assert files[0]["count"] == sum(files[0]["reliability"]["count"]) == 31
    assert 0 <= files[0]["ece"] <= 1
    assert dict(runs[0].history("val/ece"))[runs[0].result["best"]["step"]] == files[0]["ece"]


@pytest.mark.slow
def test_the_calibration_is_drawn_and_kept_by_the_tracker(runs, shell):
    run = shell.run("src.evaluate", "checkpoint=one", "tracking=mlflow", name="tracked").ok()
    run_id = run.result["tracking"]["run_id"]
    kept = [item.path for item in shell.client().list_artifacts(run_id, "plots")]
    assert "plots/reliability.png" in kept
    with Image.open(run.run_dir / "reliability.png") as image:
        assert min(image.size) > 300
    assert shell.client().get_run(run_id).data.metrics["val/ece"] == run.result["metrics"]["val/ece"]


def test_an_objective_that_decides_nothing_is_refused(shell):
    """With four classes each label is among the five best, so the first evaluation would stay the best."""
    run = shell.run("src.train", *TINY, "tracking=none", "objective.name=val/top5", name="idle")
    assert run.code == 2
    assert "objective.name=val/top5 is always 1 with 4 classes; use val/accuracy" in run.result["reason"]
