"""GPUs are counted without torch, with CUDA's reading of CUDA_VISIBLE_DEVICES."""

from pathlib import Path

import pytest

from src.launch import devices


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(devices, "PROC", tmp_path / "proc")
    monkeypatch.setattr(devices, "DEV", tmp_path / "dev")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def test_a_machine_without_a_driver_has_none(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.visible_cuda_devices() == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert devices.visible_cuda_devices() == 0


def test_the_driver_lists_them(machine: Path) -> None:
    for number in range(4):
        (machine / "proc" / f"0000:0{number}:00.0").mkdir()
    assert devices.visible_cuda_devices() == 4


def test_device_nodes_count_where_the_driver_lists_nothing(machine: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (machine / "dev" / name).touch()
    assert devices.visible_cuda_devices() == 2


@pytest.mark.parametrize(
    ("listed", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,2", 2), ("0,-1,1", 1), ("GPU-abc,GPU-def", 2), ("0,1,2,3,4,5", 4)]
)
def test_the_environment_narrows_them(machine: Path, monkeypatch: pytest.MonkeyPatch, listed: str, count: int) -> None:
    for number in range(4):
        (machine / "proc" / f"0000:0{number}:00.0").mkdir()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert devices.visible_cuda_devices() == count
