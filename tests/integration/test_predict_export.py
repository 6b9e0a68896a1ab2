"""From one trained run: predictions of one and two ranks, and files for other programs that anybody can use."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from PIL.ExifTags import Base

from src import build
from src.checkpoint.load import load
from src.network import load_model
from src.serving.formats import PixelsToLogits

from .ends import processes_of

ORIENTATION = Base.Orientation
SETTINGS = ("data=image_folder", "data.image_size=24", "train.epochs=2", "train.batch_size=6", "precision=fp32", "tracking=none")


@pytest.fixture(scope="module")
def images(image_folder):
    return image_folder(classes=4, train=9, val=7)


@pytest.fixture(scope="module")
def trained(shell, images):
    """Images of 16 pixels for a network that takes 24."""
    return shell.run("src.train", *SETTINGS, f"data.root='{images}'", name="trained").ok()


@pytest.fixture(scope="module")
def odd(shell, images):
    """A folder of images with odd names and sizes, and two broken ones."""
    folder = shell.directory / "to classify, ü"
    folder.mkdir()
    for number, path in enumerate(sorted((images / "val").rglob("*.jpg"))[:20]):
        Image.open(path).resize((16 + 5 * (number % 3), 16 + number)).save(folder / f'{number:02}, "it\'s" é.png')
    Image.new("L", (30, 20), 99).save(folder / "grey.png")
    random = np.random.default_rng(0)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.fromarray(random.integers(0, 256, (18, 40, 3), np.uint8)).save(folder / "turned.jpg", exif=exif)
    Image.fromarray(random.integers(0, 256, (20, 17, 4), np.uint8)).save(folder / "transparent.png")
    Image.fromarray(random.integers(0, 2**16, (20, 17), np.uint16)).save(folder / "sixteen bits.png")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.png").write_text("no image")
    return folder


def predicted(run):
    with (run.run_dir / "predictions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def reference(trained):
    payload = load(trained.run_dir / "checkpoints/best.pt")
    return PixelsToLogits(load_model(payload, trust_code=False), build.input_format(payload)).eval(), payload


def pixels_of(path, size):
    """As model.json says it, with Pillow and numpy alone; the square by its own arithmetic."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    elif image.mode == "I;16":
        image = Image.fromarray(((np.asarray(image).astype(int) + 128) // 257).astype(np.uint8))
    image = image.convert("RGB")
    scale = size / min(image.size)
    width, height = image.size
    left, top = (width - size / scale) / 2, (height - size / scale) / 2
    box = (left, top, left + size / scale, top + size / scale)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1).copy()


@pytest.fixture(scope="module")
def one_rank(shell, trained, odd):
    return shell.run(
        "src.predict", "checkpoint=trained", f"predict.input='{odd.name}'", "data.skip_broken=2", name="one"
    ).ok()  # fmt: skip


def test_every_image_has_its_row_in_order(one_rank, odd):
    rows = predicted(one_rank)
    assert [row["path"] for row in rows] == [str(path) for path in sorted(odd.iterdir())]
    broken = [row for row in rows if row["error"]]
    assert [row["path"].rsplit("/")[-1] for row in broken] == ["empty.jpg", "text.png"]
    assert all(row["class"] == "" for row in broken)
    assert one_rank.result["predictions"] == {"path": "predictions.csv", "count": 26, "broken": 2}
    assert one_rank.out.count("can't be read") == 2


def test_probabilities_are_those_of_a_plain_forward_pass(one_rank, trained):
    model, payload = reference(trained)
    for row in predicted(one_rank):
        if row["error"]:
            continue
        with torch.no_grad():
            shares = model(torch.from_numpy(pixels_of(row["path"], 16))[None]).double().softmax(dim=1)[0]
        best = int(shares.argmax())
        assert row["class"] == payload["class_names"][best]
        assert float(row["probability"]) == pytest.approx(float(shares[best]), abs=1e-6)


def test_two_ranks_write_the_same_bytes(shell, one_rank, odd):
    two = shell.run(
        "src.predict", "checkpoint=trained", f"predict.input='{odd.name}'", "data.skip_broken=2", "parallel=ddp", name="two"
    ).ok()  # fmt: skip
    assert two.result["world_size"] == 2
    assert (two.run_dir / "predictions.csv").read_bytes() == (one_rank.run_dir / "predictions.csv").read_bytes()
    assert not processes_of(two.run_dir)


def test_predictions_of_the_split_agree_with_the_evaluation(shell, trained):
    shell.run("src.predict", "checkpoint=trained", "predict.output=../all.jsonl", name="val").ok()
    rows = [json.loads(line) for line in (shell.directory.parent / "all.jsonl").read_text().splitlines()]
    (shell.directory.parent / "all.jsonl").unlink()
    hits = [row["class"] == row["path"].split("/")[-2] for row in rows]
    assert sum(hits) / len(hits) == pytest.approx(trained.result["best"]["value"])


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("data=digits", "predict.output=a.csv"), 2, "predict.input is not set"),
        (("predict.input=nowhere",), 3, "does not exist"),
        (("predict.input=trained",), 3, "holds no image"),
        (("predict.input=trained", "predict.output=x.txt"), 2, "must end in .csv or .jsonl"),
        (("predict.input=trained", "predict.output=./trained/../taken.csv"), 2, "nothing is overwritten"),
    ],
)
def test_what_cant_work_says_why(shell, trained, args, code, text):
    (shell.directory / "taken.csv").write_text("mine")
    run = shell.run("src.predict", "checkpoint=trained", *args, name=f"wrong {text}".replace(".", ""))
    assert run.code == code
    assert text in run.out + run.err
    assert "Traceback" not in run.out + run.err
    assert run.run_dir.exists() is (code == 3)
    assert (shell.directory / "taken.csv").read_text() == "mine"


def test_too_many_broken_images_are_an_error_of_the_data(shell, trained, odd):
    run = shell.run("src.predict", "checkpoint=trained", f"predict.input='{odd.name}'", "data.skip_broken=1", name="too-many")
    assert run.code == 3
    assert "data.skip_broken=1 but 2 images" in run.out
    assert not (run.run_dir / "predictions.csv").exists()


def test_a_users_table_in_a_chosen_run_directory_is_not_overwritten(shell, trained, odd):
    mine = shell.directory / "mine/predictions.csv"
    mine.parent.mkdir()
    mine.write_text("mine")
    run = shell.run("src.predict", "checkpoint=trained", f"predict.input='{odd.name}'", name="mine")
    assert (run.code, mine.read_text()) == (2, "mine")
    assert "nothing is overwritten" in run.out


@pytest.fixture(scope="module")
def exported(shell, trained):
    pytest.importorskip("onnxruntime")
    return shell.run("src.export", "checkpoint=trained", name="exported").ok()


def test_every_format_computes_what_the_checkpoint_does(exported):
    found = exported.result["export"]
    assert found["parity_images"] == "image_folder val"
    assert found["count"] == 28
    assert set(found["files"]) == {"onnx", "pt2", "safetensors"}
    for name, file in found["files"].items():
        assert file["path"] == f"model.{name}"
        assert (exported.run_dir / file["path"]).stat().st_size == file["bytes"]
        assert file["max_difference"] < 1e-4
        assert file["same_classes"] is True
        assert file["ms"] > 0
    assert not list(exported.run_dir.glob(".*model*"))


@pytest.mark.parametrize("count", [1, 24])
def test_onnx_needs_pillow_numpy_and_onnxruntime_alone(exported, one_rank, count):
    """From image files of every kind to the classes and probabilities that predict found, with any number of images."""
    import onnxruntime

    about = json.loads((exported.run_dir / "model.json").read_text())
    assert about["input"].startswith("pixels: uint8 [N, 3, 16, 16], RGB")
    assert "ImageOps.fit(image, (16, 16), method=Image.Resampling.BILINEAR)" in about["from_file"][2]
    session = onnxruntime.InferenceSession(exported.run_dir / "model.onnx", providers=["CPUExecutionProvider"])
    rows = [row for row in predicted(one_rank) if not row["error"]][-count:]
    assert len(rows) == count
    (logits,) = session.run(["logits"], {"pixels": np.stack([pixels_of(row["path"], 16) for row in rows])})
    powers = np.exp(logits.astype(np.float64))
    shares = powers / powers.sum(axis=1, keepdims=True)
    assert [about["class_names"][best] for best in shares.argmax(axis=1)] == [row["class"] for row in rows]
    np.testing.assert_allclose(shares.max(axis=1), [float(row["probability"]) for row in rows], atol=1e-5)


def test_pt2_and_safetensors_load_without_this_program(exported, trained, images):
    from safetensors import safe_open

    batch = torch.from_numpy(np.stack([pixels_of(path, 16) for path in sorted((images / "val").rglob("*.jpg"))[:3]]))
    model, payload = reference(trained)
    with torch.no_grad():
        torch.testing.assert_close(torch.export.load(exported.run_dir / "model.pt2").module()(batch), model(batch))
    with safe_open(exported.run_dir / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(payload["model"])
        assert json.loads(file.metadata()["class_names"]) == payload["class_names"]


def test_a_wrong_format_is_refused(shell, trained):
    run = shell.run("src.export", "checkpoint=trained", "export.formats=[tflite]", name="tflite")
    assert run.code == 2
    assert "must be some of onnx, pt2, safetensors" in run.err
    assert not run.run_dir.exists()
