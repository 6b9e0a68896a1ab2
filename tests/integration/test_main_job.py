"""The default main job, from the command to the model loaded back from MLflow."""

import json

import pytest
import torch
import yaml

from src import network
from src.checkpoint.load import load


@pytest.fixture(scope="module")
def job(shell):
    return shell.run("src.train", name="main").ok()


def test_it_learns_the_digits(job):
    result = job.result
    assert result["status"] == "FINISHED"
    assert result["exit_code"] == 0
    assert result["metrics"]["val/accuracy"] >= 0.97
    assert result["objective"] == {"name": "val/accuracy", "value": max(v for _, v in job.history("val/accuracy"))}
    assert result["skipped_updates"] == 0
    assert result["updates"] == result["steps"] == job.history("train/loss")[-1][0]


def test_it_says_what_it_computed(job):
    """A10: on a CPU amp is bfloat16 arithmetic, and that is what stands in the result."""
    assert job.result["precision"] == {"name": "amp", "dtype": "bfloat16", "scaler": False}
    assert job.result["effective"]["computed_dtype"] == "bfloat16"
    assert "bfloat16 on" in job.out


def test_the_run_directory_is_complete(job):
    names = {path.relative_to(job.run_dir).as_posix() for path in job.run_dir.rglob("*") if path.is_file()}
    expected = {
        "run.yaml",
        "train.log",
        "metrics.jsonl",
        "result.json",
        "evaluation.json",
        "curves.png",
        "confusion.png",
        "reliability.png",
        "checkpoints/best.pt",
    }
    assert expected | {".hydra/config.yaml", "ranks/0/outcome.json", "ranks/0/rank.log"} <= names
    assert (job.run_dir / job.result["checkpoint"]["last"]).is_file()
    assert yaml.safe_load((job.run_dir / "run.yaml").read_text())["model"]["name"] == "digits_cnn"


def test_plain_lines_where_there_is_no_terminal(job):
    """One line an epoch with loss, accuracy, lr, speed and ETA; no bar, no colour codes."""
    lines = [line for line in job.out.splitlines() if line.startswith("epoch ")]
    assert len(lines) == job.result["epochs"]
    for word in ("loss", "accuracy", "lr", "images/s", "ETA"):
        assert word in lines[0]
    assert "\x1b" not in job.out
    assert "Traceback" not in job.err
    assert "Warning" not in job.out + job.err


def test_the_summary_leads_on(job, shell):
    """H05: run directory, run id and the exact command of the UI."""
    assert str(job.run_dir) in job.out
    assert job.result["tracking"]["run_id"] in job.out
    assert f"-m mlflow ui --host 127.0.0.1 --workers 1 --backend-store-uri '{shell.uri}'" in job.out


def test_one_finished_mlflow_run_with_everything(job, shell):
    """D01, D08, D13."""
    (run,) = shell.runs()
    assert run.info.run_id == job.result["tracking"]["run_id"]
    assert run.info.status == "FINISHED"
    assert run.data.params["optim.lr"] == str(yaml.safe_load((job.run_dir / "run.yaml").read_text())["optim"]["lr"])
    assert run.data.params["precision.scaler.init_scale"] == "65536.0"
    assert run.data.tags["computed_dtype"] == "bfloat16"
    assert {"version.torch", "host.name", "device"} <= run.data.tags.keys()
    assert run.info.artifact_uri.startswith("file:///")
    assert not (shell.directory / "mlruns").exists()
    client = shell.client()
    assert {"run.yaml", "result.json", "train.log"} <= {a.path for a in client.list_artifacts(run.info.run_id)}
    plots = {a.path for a in client.list_artifacts(run.info.run_id, "plots")}
    assert plots == {"plots/curves.png", "plots/confusion.png", "plots/reliability.png"}
    for name in ("train/loss", "val/accuracy", "perf/images_per_second"):
        stored = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
        assert stored == job.history(name)
    whole = {
        "best/val/accuracy": job.result["objective"]["value"],
        "perf/run_images_per_second": job.result["samples_per_second"],
        "perf/run_peak_memory_gib": job.result["peak_memory_bytes"] / 2**30,
        "perf/run_seconds": job.result["duration_seconds"],
    }
    assert {name: run.data.metrics[name] for name in whole} == whole


def test_the_log_says_what_the_data_is(job):
    held = "359 to validate on held out of them (data.val_fraction)"
    assert f"data           1,438 images to train on, {held}, 10 classes, 1 x 8 x 8, loader resident" in job.out.splitlines()


def test_the_logged_model_gives_the_checkpoints_logits(job, shell):
    import mlflow

    payload = load(job.run_dir / "checkpoints" / "best.pt")
    model = network.load_model(payload, trust_code=False)
    images = torch.randn(5, *network.example_shape(payload)[1:])
    mlflow.set_tracking_uri(shell.uri)
    logged = mlflow.pytorch.load_model(f"runs:/{job.result['tracking']['run_id']}/model")
    with torch.no_grad():
        torch.testing.assert_close(logged(images), model(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parallel", [("parallel=single",), ("parallel=ddp", "parallel.num_processes=2")])
def test_evaluate_gives_the_runs_metric_exactly(job, shell, parallel):
    """F01, C19: the saved config and data, any number of ranks."""
    evaluated = shell.run(
        "src.evaluate", f"checkpoint='{job.run_dir}'", "tracking=none", *parallel, name=f"evaluate-{parallel[0].split('=')[1]}"
    ).ok()
    best = json.loads((job.run_dir / "evaluation.json").read_text())
    again = json.loads((evaluated.run_dir / "evaluation.json").read_text())
    assert again == best
    assert evaluated.result["metrics"]["val/accuracy"] == job.result["objective"]["value"]
    assert again["count"] == 359  # a fifth of 1,797 images, rounded within each class


def test_evaluate_takes_a_run_id_and_is_a_run_of_its_own(job, shell):
    evaluated = shell.run(
        "src.evaluate", f"checkpoint={job.result['tracking']['run_id']}", "split=train", "precision=fp32", name="by-id"
    ).ok()
    assert evaluated.result["metrics"].keys() == {"train/loss", "train/accuracy", "train/top5", "train/ece"}
    assert evaluated.result["objective"]["value"] > 0.98
    assert "precision: amp in the checkpoint, fp32 here" in evaluated.out
    run = shell.client().get_run(evaluated.result["tracking"]["run_id"])
    assert run.data.metrics["train/accuracy"] == evaluated.result["metrics"]["train/accuracy"]
    refused = shell.run("src.evaluate", f"checkpoint={job.run_dir.name}", "model=resnet18", name="refused")
    assert refused.code == 2


def test_checkpoints_load_without_this_project(job):
    """I01."""
    for path in (job.run_dir / "checkpoints").iterdir():
        assert "model" in torch.load(path, weights_only=True)
