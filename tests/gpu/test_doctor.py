"""On a real GPU: the doctor's probe, its modes and the coverage of the backward pass, which another thread runs."""

from io import StringIO

import pytest
import torch
from rich.console import Console
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from src.config.runfile import to_config
from src.config.schema import DoctorConfig, PrecisionConfig
from src.models import build_model
from src.survey.coverage import observe
from src.survey.formats import matmul_speeds, measurable, support
from src.survey.machine import facts, precision_modes
from src.survey.report import examine_coverage, examine_machine
from src.survey.trial import try_mode

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("name", ["fp32", "tf32", "amp", "bf16", "o2", "o3"])
def test_backward_belongs_to_the_layer_that_ran_forward(name):
    model = build_model(to_config({"model": {"name": "resnet18"}}).model, num_classes=10, channels=3, image_size=64)
    trial = try_mode(model, PrecisionConfig(name=name), device=GPU, channels_last=True)
    images, labels = torch.randn(4, 3, 64, 64, device=GPU), torch.randint(10, (4,), device=GPU)
    coverage = observe(trial.working, lambda: trial.forward_backward(images, labels))
    work = {backward: {k.module: n for k, n in coverage.flops.items() if k.backward is backward} for backward in (False, True)}
    assert work[True] == {layer: count * (1 if layer == "conv1" else 2) for layer, count in work[False].items()}
    with FlopCounterMode(display=False) as counter, trial.precision.autocast():
        F.cross_entropy(trial.working(images), labels).backward()
    assert sum(coverage.flops.values()) == counter.get_total_flops()
    tf32 = "tf32" if torch.cuda.get_device_capability(GPU) >= (8, 0) else "float32"
    expected = {"fp32": "float32", "tf32": tf32, "amp": "float16", "bf16": "bfloat16", "o2": "float16", "o3": "float16"}
    assert coverage.formats() == [expected[name]]


def test_tensor_cores_are_fast():
    """The hardware's promise and the measurement agree."""
    speeds = matmul_speeds(GPU, measurable(GPU))
    for name, speed in speeds.items():
        if name != "float32" and support(name, GPU).native:
            assert speed > 2 * speeds["float32"]
    modes = {mode.name: mode for mode in precision_modes(GPU, speeds)}
    assert all(mode.works for mode in modes.values())
    assert modes["amp"].fast is support("float16", GPU).native


def test_the_card_and_its_libraries_are_named():
    found = dict(facts(GPU))
    assert torch.cuda.get_device_name(0) in found["cuda:0"]
    assert torch.version.cuda in found["driver, CUDA, cuDNN, NCCL"]


def test_both_examinations():
    text = StringIO()
    examine_machine(DoctorConfig(device="cuda"), Console(file=text))
    assert "This card" in text.getvalue()
    examine_coverage(to_config({"device": "cuda", "model": {"name": "alexnet"}}), Console(file=text))
    assert "A step of 64 images" in text.getvalue()
    assert "100.0% of the backward FLOPs run in float16" in text.getvalue()
