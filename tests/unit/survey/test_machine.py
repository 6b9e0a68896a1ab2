"""What the machine is, and its modes."""

import os

import psutil
import pytest
import torch

from src.config.schema import OPTIONS, DoctorConfig
from src.errors import ConfigError
from src.survey import machine
from src.survey.machine import facts, no_gpu, parallel_modes, precision_modes

CPU = torch.device("cpu")
SPEEDS = {"float32": 4e9, "bfloat16": 8e9, "float16": 1e9}


def test_facts_tell_versions_cores_and_memory():
    found = dict(facts(CPU))
    assert torch.__version__ in found["python, torch, torchvision"]
    assert found["cores"].startswith(f"{len(os.sched_getaffinity(0))} usable of {psutil.cpu_count()}")
    assert f"of {psutil.virtual_memory().total / 2**30:.1f}" in found["memory"]


def test_why_there_is_no_gpu(tmp_path):
    driver = tmp_path / "version"
    assert "without CUDA" in no_gpu(built_for=None, driver=driver)
    assert "no NVIDIA driver" in no_gpu(built_for="13.0", driver=driver)
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12.2.0\n")
    assert "driver 550.54.15 is loaded" in no_gpu(built_for="13.0", driver=driver)
    assert "CUDA 13.0" in no_gpu(built_for="13.0", driver=driver)


@pytest.mark.parametrize(("text", "said"), [("max 100000", ""), ("250000 100000", "2.5"), (None, "")])
def test_a_container_with_a_share_of_the_cores(tmp_path, text, said):
    path = tmp_path / "cpu.max"
    if text is not None:
        path.write_text(text + "\n")
    found = machine._quota(path)
    assert (said in found) if said else found == ""


def test_a_container_with_a_share_of_the_memory(tmp_path):
    path = tmp_path / "memory.max"
    assert machine._memory_limit(path) == ""
    path.write_text("max\n")
    assert machine._memory_limit(path) == ""
    path.write_text(f"{3 * 2**29}\n")
    assert "1.5" in machine._memory_limit(path)


def test_every_precision_mode_is_tried():
    """On a CPU all modes work; half is bfloat16, and what it gains is the measured ratio."""
    modes = {mode.name: mode for mode in precision_modes(CPU, SPEEDS)}
    assert list(modes) == list(OPTIONS["precision"])
    assert all(mode.works for mode in modes.values())
    for name in ("amp", "bf16", "o1", "o2", "o3"):
        assert (modes[name].computes_in, modes[name].speed, modes[name].fast) == ("bfloat16", 2.0, True)
    for name in ("fp32", "tf32", "o0"):
        assert (modes[name].computes_in, modes[name].speed, modes[name].fast) == ("float32", 1.0, False)
    assert "TF32" in modes["tf32"].why


def test_a_slow_half_is_not_fast():
    modes = {mode.name: mode for mode in precision_modes(CPU, SPEEDS | {"bfloat16": 1e9})}
    assert not modes["amp"].fast
    assert modes["amp"].works


def test_a_mode_that_fails_says_why(monkeypatch):
    original = machine.try_mode

    def fail(model, precision, **kwargs):
        if precision.name == "o3":
            raise ConfigError("precision=o3 can't work\nat all")
        return original(model, precision, **kwargs)

    monkeypatch.setattr(machine, "try_mode", fail)
    modes = {mode.name: mode for mode in precision_modes(CPU, SPEEDS)}
    assert (modes["o3"].works, modes["o3"].speed, modes["o3"].why) == (False, None, "precision=o3 can't work")
    assert modes["o2"].works


def test_modes_are_tried_without_their_warnings(caplog):
    precision_modes(CPU, SPEEDS)
    assert not caplog.records


def test_parallel_modes_of_a_cpu():
    """The two ranks of ``parallel.num_processes=auto`` on a CPU, joined by gloo."""
    found = {mode.name: (mode.ranks, mode.backend) for mode in parallel_modes(DoctorConfig(), CPU)}
    assert list(found) == list(OPTIONS["parallel"])
    assert (found["single"], found["ddp"]) == ((1, "-"), (2, "gloo"))
