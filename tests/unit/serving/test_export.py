"""Files get their names only if they are right, and nothing of the user's is overwritten."""

import json
import logging

import pytest
import torch
from rich.console import Console
from torch import nn

from src import work
from src.checkpoint.load import load
from src.config.runfile import to_config
from src.config.schema import Config, ExportConfig
from src.data.base import InputFormat
from src.errors import CheckpointError, ConfigError, ExitCode
from src.launch.signals import StopSignals
from src.runtime.rank import Rank
from src.serving.export import export, milliseconds, table, written
from src.serving.formats import PixelsToLogits, write_onnx, write_pt2

GREY = {"name": "synthetic", "size": 16, "val_size": 40, "pixels": 8, "channels": 1, "classes": 3}


@pytest.fixture(autouse=True)
def threads_restored():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    """A checkpoint whose average of the weights is not its weights."""
    settings = {"device": "cpu", "tracking": {"name": "none"}, "precision": {"name": "fp32"}, "data": GREY}
    config = to_config(settings | {"train": {"epochs": 1, "batch_size": 8, "ema_decay": 0.9}}, Config)
    run_dir = tmp_path_factory.mktemp("run")
    assert work.run_rank(config, run_dir=run_dir, rank=Rank(), signals=StopSignals()).exit_code == ExitCode.OK
    return load(run_dir / "checkpoints" / "best.pt")


def config(*formats, data=GREY):
    return to_config({"data": data, "export": {"formats": list(formats)}}, ExportConfig)


def test_the_average_of_the_weights_is_exported_and_checked_on_the_split(payload, tmp_path):
    found = export(config("safetensors", "safetensors", "pt2"), payload, run_dir=tmp_path)["export"]
    assert (found["parity_images"], found["count"], list(found["files"])) == ("synthetic val", 32, ["safetensors", "pt2"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.pt2", "model.safetensors"]
    from safetensors.torch import load_file

    weights = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(weights[name], tensor) for name, tensor in payload["ema"].items())
    assert any(not torch.equal(weights[name], tensor) for name, tensor in payload["model"].items())
    about = json.loads((tmp_path / "model.json").read_text())
    assert about["input"] == "pixels: uint8 [N, 1, 8, 8], grey (ITU-R 601 luma), 0 to 255"
    assert about["from_file"][-1] == "convert('L')"
    assert about["class_names"] == ["class0", "class1", "class2"]


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_file_that_is_there_stays_as_it_is(payload, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=rf"{name} exists; nothing is overwritten"):
        export(config("safetensors"), payload, run_dir=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_without_the_images_noise_serves_and_is_called_so(payload, tmp_path, caplog):
    missing = {"name": "image_folder", "root": str(tmp_path / "gone")}
    with caplog.at_level(logging.WARNING):
        found = export(config("safetensors", data=missing), payload, run_dir=tmp_path)["export"]
    assert (found["parity_images"], found["count"]) == ("noise", 32)
    assert "checked on noise" in caplog.text
    assert "gone" in caplog.text


@pytest.mark.parametrize("other", [{"channels": 3}, {"pixels": 9}])
def test_images_of_another_kind_than_the_networks_are_refused(payload, tmp_path, other):
    with pytest.raises(ConfigError, match=r"data\.name=synthetic has images of .* but the network was trained on \[1, 8, 8\]"):
        export(config("safetensors", data=GREY | other), payload, run_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def logits(batch):
    return batch.float().flatten(1)


@pytest.mark.parametrize("wrong", [0.01, float("nan")])
@pytest.mark.parametrize("alone", [False, True])
def test_a_file_that_computes_something_else_is_not_kept(tmp_path, wrong, alone):
    """Also one that is right for the batch it was made with but not for a single image."""
    batch = torch.randint(256, (4, 1, 2, 2), dtype=torch.uint8)

    def write(path):
        path.write_text("file")
        return lambda images: logits(images) + (wrong if len(images) == 1 or not alone else 0)

    with pytest.raises(
        CheckpointError, match=r"model\.pt2 computes other logits .* export\.tolerance=0\.001; the file was not kept"
    ) as error:
        written(tmp_path / "model.pt2", write, batch, logits(batch), tolerance=1e-3)
    assert error.value.exit_code == 5
    assert not list(tmp_path.iterdir())


class Branches(nn.Module):
    def forward(self, images):
        return images.flatten(1) if images.sum() > 0 else -images.flatten(1)


class FourImages(nn.Module):
    def forward(self, images):
        return images.reshape(4, -1)


class SingularValues(nn.Module):
    def forward(self, images):
        return torch.linalg.svdvals(images).flatten(1)


@pytest.mark.parametrize(
    ("net", "write", "reason"),
    [
        (Branches(), write_pt2, "data-dependent"),
        (Branches(), write_onnx, "data-dependent"),
        (FourImages(), write_pt2, "batch"),
        (FourImages(), write_onnx, "one number of images only"),
        (SingularValues(), write_onnx, "No ONNX function found .*svd"),
    ],
)
def test_a_network_that_a_format_cant_hold_is_an_error_of_the_choice(tmp_path, capfd, net, write, reason):
    if write is write_onnx:
        pytest.importorskip("onnxruntime")
    model = PixelsToLogits(net, InputFormat(1, 2, [0.5], [0.2])).eval()
    batch = torch.randint(256, (4, 1, 2, 2), dtype=torch.uint8)
    with pytest.raises(ConfigError, match=rf"^export\.formats: the network can't be written as x \(.*{reason}.*\); leave x out$"):
        written(tmp_path / "model.x", lambda path: write(model, batch, path), batch, model(batch), tolerance=1e-3)
    assert not list(tmp_path.iterdir())
    captured = capfd.readouterr()
    assert "def forward" not in captured.out + captured.err


def test_the_table_tells_of_as_many_images_as_were_timed(capsys):
    file = {"path": "model.pt2", "bytes": 2**20, "max_difference": 1e-7, "same_classes": False, "ms": 2.0}
    console = Console(width=120)
    console.print(table({"pt2": file}, eager_ms=3.0, count=15))
    shown = capsys.readouterr().out
    assert "ms for 15 images" in shown
    assert shown.splitlines()[-1].split() == ["model.pt2", "1.0", "1.0e-07", "NO", "2.0"]


def test_the_time_is_the_median_of_a_batch():
    calls = []
    assert 0 <= milliseconds(lambda images: calls.append(images) or images, torch.ones(1)) < 1000
    assert len(calls) > 3
