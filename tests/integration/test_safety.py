"""Files and names from strangers: one clear line and the right exit code, no code run, nothing written where it does not belong."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from src.checkpoint import manifest

from .conftest import TINY, Shell

KEYS = {"checkpoint": "src.evaluate", "resume": "src.train", "model.pretrained": "src.train"}
ONE_STEP = (*TINY, "train.epochs=1", "train.max_steps=1", "tracking=none")


class Hostile:
    """Unpickled, it creates a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@pytest.fixture(scope="module")
def run(shell):
    return shell.run("src.train", *ONE_STEP, name="good").ok()


@pytest.fixture(scope="module")
def files(shell, run, tmp_path_factory):
    """A file of each kind that is no whole checkpoint, by kind."""
    folder = tmp_path_factory.mktemp("files é")
    whole = (run.run_dir / "checkpoints" / "best.pt").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    contents = {
        "half": whole[: len(whole) // 2],
        "tail": whole[:-20],
        "empty": b"",
        "text": b"this is a text\n",
        "flipped": bytes(flipped),
        "picture": b"\xff\xd8\xff\xe0" + bytes(500),
    }
    for kind, content in contents.items():
        (folder / f"{kind}.pt").write_bytes(content)
    (folder / "directory.pt").mkdir()
    (folder / "closed.pt").symlink_to("/proc/self/mem" if os.geteuid() == 0 else "closed")  # root may read what is closed to others
    if os.geteuid():
        (folder / "closed").touch(mode=0)
    return {kind: folder / f"{kind}.pt" for kind in (*contents, "directory", "closed", "missing", "x" * 300)}


def sign(path: Path, payload: object, about: dict[str, object]) -> None:
    """Write a file whose digest fits, whatever is in it."""
    with path.open("wb+") as file:
        writer = manifest.HashingWriter(file)
        torch.save(payload, writer)
        manifest.append(file, sha256=writer.sha256.hexdigest(), size=writer.size, about=about)


def start_from(shell, key: str, path: Path, *, name: str):
    arguments = ("tracking=none",) if key == "checkpoint" else ONE_STEP
    return shell.run(KEYS[key], *arguments, f"{key}='{path}'", name=name)


@pytest.mark.parametrize("key", KEYS)
def test_a_file_that_is_no_checkpoint_is_refused_before_anything_is_created(shell, files, key):
    before = sorted(shell.directory.rglob("*"))
    for kind, path in files.items():
        refused = start_from(shell, key, path, name="refused")
        assert refused.code == 5, (kind, refused.out, refused.err)
        (line,) = refused.err.splitlines()
        assert line.startswith("error: ")
        assert str(path) in line
        assert "; " in line  # what to do
        assert not refused.out
    assert sorted(shell.directory.rglob("*")) == before


@pytest.mark.slow
def test_code_in_a_file_is_never_run(shell, run, tmp_path):
    """A plain pickle, an archive of torch, and a checkpoint with a digest that fits: only reading them tells what they are."""
    marker = tmp_path / "marker"
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Hostile(marker)))
    torch.save({"model": {"w": Hostile(marker)}}, tmp_path / "archive.pt")
    about = manifest.read(run.run_dir / "checkpoints" / "best.pt")
    sign(tmp_path / "signed.pt", {"model": {"w": Hostile(marker)}}, {"step": 1, "epoch": 1, "config": about["config"]})
    for key, kind in (("model.pretrained", "pickle"), ("model.pretrained", "archive"), *((key, "signed") for key in KEYS)):
        refused = start_from(shell, key, tmp_path / f"{kind}.pt", name=f"hostile-{key}-{kind}")
        assert refused.code == 5, (key, kind, refused.out, refused.err)
        assert refused.result["reason"].startswith(f"{tmp_path / kind}.pt (")
        assert "can't be loaded safely" in refused.result["reason"]
        assert "Traceback" not in refused.out + refused.err
        assert not marker.exists()
    for key, kind in (("checkpoint", "pickle"), ("resume", "archive")):
        assert start_from(shell, key, tmp_path / f"{kind}.pt", name="refused").code == 5
        assert not (shell.directory / "refused").exists()
    assert not marker.exists()


def test_a_signed_manifest_of_somebody_else_is_refused_before_anything_is_created(shell, run, tmp_path):
    """A digest that fits says nothing about what the manifest means."""
    about = manifest.read(run.run_dir / "checkpoints" / "best.pt")
    config = about["config"]
    before = sorted(shell.directory.rglob("*"))
    for key, name, change in [
        ("checkpoint", "no config", {"config": None}),
        ("checkpoint", "model", {"config": config | {"model": "x"}}),
        ("checkpoint", "name", {"config": config | {"data": {"name": "../../evil"}}}),
        ("checkpoint", "later", {"config": config | {"later": 1}}),
        ("resume", "list", {"config": [1]}),
        ("resume", "step", {"step": "7"}),
        ("resume", "tracking", {"tracking": ["run"]}),
    ]:
        path = tmp_path / f"{name}.pt"
        sign(path, {"model": {}}, {key: about[key] for key in ("step", "epoch", "tracking", "config")} | change)
        refused = start_from(shell, key, path, name="refused")
        assert refused.code == 5, (name, refused.out, refused.err)
        (line,) = refused.err.splitlines()
        assert line.startswith(f"error: {path}: ")
        assert "; " in line  # what to do
    assert sorted(shell.directory.rglob("*")) == before


def test_an_archive_of_somebody_else_is_no_checkpoint(shell, tmp_path):
    with zipfile.ZipFile(tmp_path / "foreign.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"not a pickle")
        archive.comment = json.dumps({"sha256": "0" * 64, "format": 999, "size": 10}).encode()
    for key in KEYS:
        refused = start_from(shell, key, tmp_path / "foreign.pt", name="refused")
        assert refused.code == 5
        assert "checkpoint format 999, this version reads" in refused.err
        assert not refused.run_dir.exists()


@pytest.mark.parametrize(
    "override",
    [
        "name=../../evil",
        "name=/evil",
        "name='a\nevil'",
        "tracking.run_name=../evil",
        "tracking.experiment_name=../../evil",
        "tracking.experiment_name=/evil",
        "'+tags.../../evil=1'",
    ],
)
def test_a_name_that_is_a_path_is_refused(shell, override):
    before = sorted(shell.directory.rglob("*"))
    process = shell.start("src.train", *ONE_STEP, override)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, out + err
    assert len(err.splitlines()) == 1
    assert "evil" in err
    assert sorted(shell.directory.rglob("*")) == before


@pytest.mark.parametrize("subdir", ["../../evil", "/tmp/evil", "${hydra:job.override_dirname}"])
def test_a_sweeps_jobs_stay_in_its_directory(shell, subdir):
    """Also where the value of a swept key becomes a part of the path."""
    before = sorted(shell.directory.rglob("*"))
    arguments = ("-m", *ONE_STEP, "seed=1,2", "+tags.x='../../../../../evil'", f"hydra.sweep.subdir='{subdir}'", "hydra.sweep.dir=sweep")
    process = shell.start("src.train", *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, out + err
    assert "leads out of hydra.sweep.dir" in err
    assert sorted(shell.directory.rglob("*")) == before


@pytest.mark.slow
def test_odd_names_stay_inside_the_run_directory_and_the_store(shell, tmp_path):
    """Letters of any script, blanks, quotes and globs in every name, ``../`` in tags and class folders: nothing appears elsewhere."""
    images = tmp_path / "images"
    classes = ["x\\..\\..\\evil", "$HOME", "name 名前 *?", "-rf"]
    for number, name in enumerate(classes * 2):
        folder = images / ("train", "val")[number // 4] / name
        folder.mkdir(parents=True)
        for image in range(4):
            Image.fromarray(np.full((8, 8, 3), 60 * (number % 4), np.uint8)).save(folder / f"{image}.png")
    before = {path for path in shell.directory.rglob("*") if path.is_file()}
    outside = sorted(shell.directory.parent.iterdir())
    arguments = (
        "data=image_folder",
        f"data.root='{images}'",
        "train.epochs=1",
        "train.batch_size=4",
        "tracking=both",
        "tracking.log_model=false",
        "name='a b: é*?<>|\"$(touch evil)'",
        "tracking.run_name='名前 ` ; &&'",
        "tracking.experiment_name='odd é %2e%2e%2fevil'",
        "+tags.path='../../evil'",
        "hydra.run.dir='x/../odd é'",
    )
    process = shell.start("src.train", *arguments)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    assert not (shell.directory / "x").exists()
    created = {path for path in shell.directory.rglob("*") if path.is_file()} - before
    places = {path.relative_to(shell.directory).parts[0] for path in created}
    assert places <= {"odd é", "store.db", "store.db.lock", "mlartifacts"}
    assert sorted(shell.directory.parent.iterdir()) == outside
    assert not list(shell.directory.rglob("*evil"))
    evaluation = json.loads((shell.directory / "odd é" / "evaluation.json").read_text())
    assert sorted(evaluation["class_names"]) == sorted(classes)
    result = json.loads((shell.directory / "odd é" / "result.json").read_text())
    tags = shell.client().get_run(result["tracking"]["run_id"]).data.tags
    assert tags["path"] == "../../evil"


def test_a_generated_directory_has_a_harmless_name(shell):
    before = set(shell.directory.iterdir())
    process = shell.start("src.train", *ONE_STEP, "name='é*?<>|$(touch evil) `x`'")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert {path.name for path in set(shell.directory.iterdir()) - before} <= {"outputs"}
    (created,) = (shell.directory / "outputs").glob("*/*")
    assert created.name.split("-", 3)[3] == "é-touch-evil-x"


@pytest.mark.parametrize("where", ["default", "given"])
def test_a_place_that_can_not_be_written_is_refused_before_any_rank_starts(shell, where):
    """/proc takes no directories, from root either."""
    shell = Shell(shell.directory)
    given = ("hydra.run.dir=/proc/halfstep",) if where == "given" else ()
    if where == "default":
        shell.directory = Path("/proc")
    process = shell.start("src.train", *ONE_STEP, "parallel=ddp", *given, PYTHONPROFILEIMPORTTIME="1")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, out + err
    (line,) = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert "/proc/" in line
    assert "can't be created" in line
    assert "torch" not in {line.split("|")[-1].strip() for line in err.splitlines()}
