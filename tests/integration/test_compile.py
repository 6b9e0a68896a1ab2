"""Compiled training computes what plain training does, alone and with two ranks."""

import json

import pytest

pytestmark = pytest.mark.slow
SMALL = (
    "data=synthetic", "data.size=96", "data.val_size=33", "train.batch_size=16", "train.accumulate=2", "train.epochs=2",
    "train.log_every=1", "train.clip_norm=1.0", "device=cpu", "precision=fp32", "tracking=none", "optim=sgd", "optim.lr=0.01",
)  # fmt: skip


def losses(run_dir):
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    return {(point["name"], point["step"]): point["value"] for point in points if not point["name"].startswith("perf/")}


@pytest.mark.parametrize("parallel", ["single", "ddp", "fsdp"])
def test_the_same_numbers(shell, parallel):
    plain = shell.run("src.train", *SMALL, f"parallel={parallel}", name=f"plain-{parallel}")
    compiled = shell.run("src.train", *SMALL, f"parallel={parallel}", "train.compile=default", name=f"compiled-{parallel}")
    assert (plain.code, compiled.code) == (0, 0), compiled.err
    assert [run.result["effective"]["compile"] for run in (plain, compiled)] == ["none", "default"]
    expected = losses(plain.run_dir)
    assert losses(compiled.run_dir) == {key: pytest.approx(value, rel=1e-3, abs=1e-6) for key, value in expected.items()}
