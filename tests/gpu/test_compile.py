"""On a real GPU: compiled training steps compute what plain ones do, alone and over NCCL, and read nothing on the host."""

import math

import pytest
import torch

from src.engine import loop
from src.engine.state import TrainState
from tests.gpu.jobs import JOB, fit, forbid_host_reads, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # torch's own compiler
]


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("parallel", "mode", "precision"),
    [
        ("single", "default", "o2"),
        ("single", "reduce_overhead", "amp"),
        ("ddp", "default", "amp"),
        ("ddp", "reduce_overhead", "fp32"),
        ("fsdp", "default", "amp"),
    ],
)
def test_compiled_training_is_the_same_training(group, tmp_path, parallel, mode, precision):
    """Two micro-batches a step: with CUDA graphs the gradient of the first must outlive the second."""
    mode_of = {"name": parallel} | ({} if parallel == "single" else {"num_processes": 1})
    plain = fit(make(tmp_path / "plain", precision={"name": precision}))
    parts = make(tmp_path / "compiled", precision={"name": precision}, parallel=mode_of, train=JOB["train"] | {"compile": mode})
    compiled = fit(parts)
    assert parts.forward.mode.value == mode
    assert compiled.updates == plain.updates
    for name in ("train/loss", "val/loss"):
        assert compiled.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-3 if precision == "fp32" else 2e-2), name


@pytest.mark.parametrize("mode", ["default", "reduce_overhead"])
def test_a_compiled_step_never_reads_the_host(tmp_path, monkeypatch, mode):
    """From the second epoch, when all is compiled."""
    parts = make(tmp_path / "run", precision={"name": "amp"}, train=JOB["train"] | {"compile": mode, "epochs": 3})
    state = TrainState()
    forbid_host_reads(monkeypatch, from_now=lambda: state.epoch > 0)
    try:
        loop.fit(parts, state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert state.step == parts.planned_steps
    assert math.isfinite(state.metrics["train/loss"])
