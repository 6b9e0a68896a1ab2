"""Load of the machine; psutil and a driver library made up of NVML's names are the oracles."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from src.tracking import load
from src.tracking.base import Point
from src.tracking.journal import Journal, read_points
from src.tracking.load import Gpus, LoadSampler, visible_indices

UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("0,7,1", [0]),
        ("GPU-cc,GPU-aa11", [2, 0]),
        ("GPU-a", []),
        ("MIG-1", []),
    ],
)
def test_only_gpus_that_cuda_shows_are_read(visible: str | None, chosen: list[int]) -> None:
    """As CUDA reads the variable: in its order, up to the first entry that is no GPU, a UUID by any beginning that fits one."""
    assert visible_indices(visible, UUIDS) == chosen


class _NvmlError(Exception):
    pass


def _nvml(**changes: Any) -> SimpleNamespace:
    calls = {
        "NVMLError": _NvmlError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: UUIDS[handle],
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=(handle + 1) * 2**29),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=10 * (handle + 1)),
    }
    return SimpleNamespace(**calls | changes)


def test_gpus_are_numbered_as_cuda_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _nvml())
    assert Gpus("2,0").load() == {"gpu_0_memory_gib": 1.5, "gpu_0_percent": 30.0, "gpu_1_memory_gib": 0.5, "gpu_1_percent": 10.0}


def test_without_library_driver_or_an_answer_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise _NvmlError("no")

    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus(None).load() == {}
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(nvmlInit=refuse))
    assert Gpus(None).load() == {}
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(nvmlDeviceGetUtilizationRates=refuse))
    assert Gpus("0").load() == {"gpu_0_memory_gib": 0.5}


def test_memory_is_that_of_the_process_and_its_descendants() -> None:
    code = "import sys; block = bytearray(200 * 2**20); print('ready', flush=True); sys.stdin.read()"
    before = load.host_load()["memory_gib"]
    assert before >= psutil.Process(os.getpid()).memory_info().rss / 2**30 * 0.9
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    grown = load.host_load()["memory_gib"] - before
    child.communicate()
    assert 0.19 < grown < 0.4


def test_samples_go_to_their_own_journal_at_the_step_of_the_run(tmp_path: Path) -> None:
    """Now and then, and once at the end."""
    run = Journal(tmp_path / "metrics.jsonl")
    run.write([Point("train/loss", 1.0, 20, 0.0)])
    sampler = LoadSampler(tmp_path / "system.jsonl", run_journal=run.path, visible=None, every_seconds=3600)
    sampler.start()
    run.write([Point("train/loss", 1.0, 40, 0.0)])
    sampler.close()
    points, _ = read_points(tmp_path / "system.jsonl")
    found = {point.name: point for point in points}
    assert len(points) == len(found)
    assert {"system/cpu_percent", "system/memory_gib"} <= found.keys()
    assert {point.step for point in points} == {40}
    assert 0 <= found["system/cpu_percent"].value <= 100
    assert abs(found["system/memory_gib"].time - (tmp_path / "system.jsonl").stat().st_mtime) < 5


def test_a_fault_ends_the_sampling_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> dict[str, float]:
        raise PermissionError("no /proc here")

    monkeypatch.setattr(load, "host_load", fail)
    sampler = LoadSampler(tmp_path / "system.jsonl", run_journal=tmp_path / "metrics.jsonl", visible=None, every_seconds=0.01)
    sampler.start()
    sampler.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no /proc here" in caplog.text
