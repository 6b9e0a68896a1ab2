"""Both examinations on a small network, from config to text."""

from io import StringIO

import pytest
import torch
from rich.console import Console

from src.config.runfile import to_config
from src.errors import ConfigError
from src.survey import report
from src.survey.trial import Shape, build_trial


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(report.ranks, "use_threads", lambda world_size: 1)
    monkeypatch.setattr(report, "LIMIT_SECONDS", 0.2)
    monkeypatch.setattr("src.survey.formats.PROBE_SECONDS", 0.01)
    monkeypatch.setattr("src.survey.formats.CPU_SIDE", 64)


def told(examine, **keys) -> str:
    text = StringIO()
    examine(to_config({"device": "cpu"} | keys), Console(file=text))
    return text.getvalue()


def test_the_machine():
    text = told(report.examine_machine)
    assert torch.__version__ in text
    for mode in ("fp32", "tf32", "amp", "bf16", "o0", "o1", "o2", "o3", "single", "ddp"):
        assert f"\n{mode} " in text
    assert "the speed of float32" in text.splitlines()[-1]


def test_the_coverage_of_a_run():
    text = told(report.examine_coverage, data={"image_size": 8}, precision={"name": "amp", "overrides": ["head=float32"]})
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["conv1"][1:3] == ["convolution", "bfloat16"]
    assert rows["head"][1:3] == ["matmul", "float32"]
    assert "run in bfloat16." in text
    assert "perf/data_wait" in text.splitlines()[-1]


def test_float32_is_shown_too():
    text = told(report.examine_coverage, data={"image_size": 8}, precision={"name": "fp32"})
    assert "100.0% of the forward FLOPs and 100.0% of the backward FLOPs run in float32." in text


def test_images_that_a_network_can_not_take(monkeypatch):
    """A network that tells only by running: the option to change is named."""
    monkeypatch.setattr(report, "input_shape", lambda config: Shape(3, 16, 10))
    with pytest.raises(ConfigError, match=r"model=alexnet with precision=fp32 .* 3 x 16 x 16 .*data.image_size"):
        told(report.examine_coverage, model={"name": "alexnet"}, precision={"name": "fp32"})


@pytest.mark.parametrize(("observed", "images", "steps"), [(11.0, 2, 1), (9.0, 2, 2)])
def test_a_network_too_slow_for_its_batch(monkeypatch, observed, images, steps):
    """A step that took longer than the limit isn't repeated; a CPU gets as few images as it takes."""
    config = to_config({"device": "cpu", "train": {"batch_size": 64}})
    monkeypatch.setattr(report, "LIMIT_SECONDS", 10.0)
    monkeypatch.setattr(report, "step_seconds", lambda trial, *batch, limit: (0.5, 2))
    shape = Shape(3, 8, 10)
    trial = build_trial(config, config.precision, shape=shape, device=torch.device("cpu"))
    timing = report.measure(config, trial, shape, observed_seconds=observed)
    assert (timing.images, timing.mode_steps) == (images, steps)
    assert timing.mode_seconds == (observed if steps == 1 else 0.5)


def test_a_rank_measures_its_share_of_the_batch(monkeypatch):
    monkeypatch.setattr(report, "step_seconds", lambda trial, *batch, limit: (1e-6, 2))
    config = to_config({"device": "cpu", "train": {"batch_size": 48, "accumulate": 2}, "parallel": {"name": "ddp", "num_processes": 4}})
    shape = Shape(3, 8, 10)
    trial = build_trial(config, config.precision, shape=shape, device=torch.device("cpu"))
    assert report.measure(config, trial, shape, observed_seconds=0.1).images == 6


def test_a_batch_that_does_not_fit_is_not_timed(monkeypatch):
    def measure(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(report, "measure", measure)
    text = told(report.examine_coverage, data={"image_size": 8}, precision={"name": "amp"})
    assert "smaller train.batch_size" in text
    assert "times as fast" not in text
