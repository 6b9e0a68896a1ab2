"""Weights out of anybody's files."""

import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from src.checkpoint.save import write_checkpoint
from src.checkpoint.weights import read_weights
from src.errors import CheckpointError

MODEL = {"fc.weight": torch.full((3, 4), 1.0), "fc.bias": torch.arange(3.0)}
AVERAGE = {name: tensor + 1 for name, tensor in MODEL.items()}


def checkpoint(directory: Path, **payload: object) -> Path:
    return write_checkpoint(directory, {"config": {}, "state": {"step": 1}, **payload}, about={"step": 1}, is_best=False, keep=1)


def assert_same(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert weights.keys() == expected.keys()
    assert all(weights[name].equal(tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(("average", "expected"), [({"ema": AVERAGE}, AVERAGE), ({"ema": None}, MODEL), ({}, MODEL)])
def test_a_checkpoint_gives_its_average_or_its_weights(tmp_path, average, expected):
    assert_same(read_weights(checkpoint(tmp_path, model=MODEL, **average)), expected)


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"state_dict": state, "epoch": 3}, lambda state: {"model": state}])
@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saved(tmp_path, wrap, zipped):
    path = tmp_path / "weights.pt"
    torch.save(wrap(MODEL), path, _use_new_zipfile_serialization=zipped)
    assert_same(read_weights(path), MODEL)


def test_a_layer_called_model_is_not_a_nest(tmp_path):
    model = nn.ModuleDict({"model": nn.Linear(2, 2)})
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    assert_same(read_weights(tmp_path / "weights.pt"), model.state_dict())


def test_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(MODEL, path)
    assert_same(read_weights(path), MODEL)


def one_line(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        read_weights(path)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def content(kind: str, good: bytes) -> bytes:
    return {
        "empty": b"",
        "text": b"hello\nworld\n" * 50,
        "half": good[: len(good) // 2],
        "zeros": bytes(5000),
        "pickle": b"\x80\x02]q\x00.",
    }[kind]


@pytest.mark.parametrize("kind", ["empty", "text", "half", "zeros", "pickle"])
@pytest.mark.parametrize("name", ["weights.pt", "model.safetensors"])
def test_every_foreign_file_is_one_line(tmp_path, name, kind):
    """I03 and FAULTS rows 10, 11: path, size and what to do."""
    good = tmp_path / "good.pt"
    torch.save(MODEL, good)
    path = tmp_path / name
    path.write_bytes(content(kind, good.read_bytes()))
    message = one_line(path)
    assert f"({path.stat().st_size} bytes)" in message
    assert "; give a" in message


def test_missing_files_and_directories(tmp_path):
    assert "is missing" in one_line(tmp_path / "nothing.pt")
    assert "is a directory" in one_line(tmp_path)


@pytest.mark.parametrize("saved", [{}, [torch.ones(1)], torch.ones(1), {"state_dict": {}}, {"lr": 0.1}, {"model": {"a": 1}}, 5])
def test_what_holds_no_tensors_by_name(tmp_path, saved):
    torch.save(saved, tmp_path / "weights.pt")
    assert "holds no state dict" in one_line(tmp_path / "weights.pt")


def test_a_flipped_bit_of_a_checkpoint_is_seen(tmp_path):
    """I03: torch alone would load it."""
    path = checkpoint(tmp_path, model=MODEL)
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((4,), 1.0).numpy().tobytes())] ^= 1
    path.write_bytes(data)
    assert "damaged" in one_line(path)
    assert torch.load(path, weights_only=True)["model"]["fc.weight"][0, 0] != 1


def test_a_whole_pickled_network_is_refused_and_runs_no_code(tmp_path):
    """FAULTS row 13, bare and in a checkpoint with a right digest."""

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/owned",)

    torch.save({"fc.weight": Hostile()}, tmp_path / "hostile.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "network.pt")
    for path in (tmp_path / "hostile.pt", tmp_path / "network.pt", checkpoint(tmp_path, model={"fc.weight": Hostile()})):
        assert "can't be loaded safely" in one_line(path)
    assert not (tmp_path / "owned").exists()
