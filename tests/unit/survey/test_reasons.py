"""The sentences, from numbers known in advance."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from src.survey import reasons as module
from src.survey.coverage import Coverage, Kind
from src.survey.formats import Support
from src.survey.reasons import Timing, odd_sizes, reasons

CPU, GPU = torch.device("cpu"), torch.device("cuda")
NET = nn.Sequential(nn.Conv2d(3, 16, 3), nn.LayerNorm(4), nn.Linear(16, 24), nn.Linear(24, 10))
HALF = Coverage(
    Counter({Kind("0", "convolution", "float16", False): 6_000_000, Kind("3", "matmul", "float16", True): 2_000_000}),
    Counter({"0": 3, "1": 1}),
    kernels=4,
)
TIMING = Timing(images=64, full_seconds=0.012, full_steps=10, mode_seconds=0.010, mode_steps=10)


@pytest.fixture
def tensor_cores(monkeypatch):
    monkeypatch.setattr(module, "support", lambda name, device: Support(True, "tensor cores"))


def told(coverage=HALF, timing=TIMING, *, name="amp", device=GPU, speed=1e12) -> str:
    found = reasons(name, coverage, NET, timing, speeds={"float16": speed, "bfloat16": speed}, device=device, images=2)
    return "\n".join(found)


def test_both_steps_are_told(tensor_cores):
    text = told()
    assert "64 images takes 12 ms with fp32 (mean of 10 steps) and 10 ms with amp (mean of 10 steps)" in text
    assert "1.20 times as fast" in text


def test_a_tiny_network_gains_nothing(tensor_cores):
    """G01: 8 MFLOP for 2 images are 256 for 64: 0.256 ms at 1 TFLOP/s, 3% of 10 ms; 4 kernels of 64 MFLOP."""
    text = told(timing=replace(TIMING, full_seconds=0.0101))
    assert "0.256 GFLOP would take 0.256 ms" in text
    assert "3% of the step" in text
    assert "small kernels (64 MFLOP each)" in text


@pytest.mark.parametrize("change", ["fast", "busy"])
def test_a_network_that_gains_or_computes_is_not_called_tiny(tensor_cores, change):
    text = told(timing=replace(TIMING, full_seconds=0.02)) if change == "fast" else told(speed=5e10)
    assert "small kernels" not in text
    assert "of the step" in text


def test_hardware_without_units_is_named(monkeypatch):
    monkeypatch.setattr(module, "support", lambda name, device: Support(False, f"no tensor cores for {name}"))
    assert "The hardware is the limit: no tensor cores for float16." in told()


def test_sizes_that_tensor_cores_do_not_like(tensor_cores):
    text = told()
    assert "0 (3 x 16), 3 (24 x 10)." in text
    assert "Tensor cores" not in told(device=CPU)


def test_odd_sizes_are_those_of_one_group():
    net = nn.Sequential(nn.Conv2d(32, 64, 3, groups=2), nn.Conv2d(64, 64, 3, groups=64), nn.Conv2d(64, 12, 1), nn.Linear(12, 8))
    assert odd_sizes(net) == {"1": "1 x 1", "2": "64 x 12", "3": "12 x 8"}


def test_what_stays_in_float32_is_named(tensor_cores):
    coverage = replace(HALF, flops=HALF.flops + Counter({Kind("2", "matmul", "float32", False): 2_000_000}))
    assert "20% of the FLOPs stay in float32: 2." in told(coverage)
    assert "stay in float32:" not in told()


def test_casts_around_norms(tensor_cores):
    assert "1 of the 4 casts are around norms that stay in float32 (1: LayerNorm)" in told()
    assert "around" not in told(replace(HALF, casts=Counter({"0": 9, "1": 1})))


def test_float32_has_nothing_to_compare():
    full = Coverage(Counter({Kind("0", "convolution", "float32", False): 1}), Counter(), kernels=1)
    assert "precision=fp32 computes every matmul and convolution in float32 here." in told(full, name="fp32")
    assert "only NVIDIA GPUs have TF32" in told(full, name="tf32", device=CPU)


def test_long_lists_are_cut(tensor_cores):
    flops = Counter({Kind(f"layer{i}", "matmul", "float32", False): 1 for i in range(9)})
    assert "layer5 and 3 more." in told(replace(HALF, flops=HALF.flops + flops))
