"""Checkpoint files: whole, verified, plain."""

import os
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from src.checkpoint import find, load, manifest, save
from src.errors import CheckpointError


def write(directory: Path, step: int, *, is_best: bool = False, keep: int = 5) -> Path:
    payload = {"config": {"name": "ünï"}, "weight": torch.full((100,), float(step))}
    return save.write_checkpoint(directory, payload, about={"step": step}, is_best=is_best, keep=keep)


def damage(path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    if kind == "half":
        data = data[: len(data) // 2]
    elif kind == "tail cut":
        data = data[:-1]
    elif kind == "empty":
        data = bytearray()
    elif kind == "text":
        data = bytearray(b"not a checkpoint\n" * 20)
    elif kind == "flipped weight":
        position = data.index(torch.full((4,), 1.0).numpy().tobytes())
        data[position] ^= 1
    elif kind == "flipped manifest":
        data[data.index(b'"sha256":"') + 12] ^= 1
    elif kind == "flipped config":
        data[data.index(b'"config":') + 11] ^= 1  # still JSON
    path.unlink()  # a hard link to it must not change
    path.write_bytes(data)


KINDS = ["half", "tail cut", "empty", "text", "flipped weight", "flipped manifest", "flipped config"]


def test_anybody_can_read_what_we_write(tmp_path):
    """I01: plain types, loadable by torch alone in safe mode; also an ordinary zip archive, with the mode umask gives (I06)."""
    path = write(tmp_path, 1)
    assert zipfile.ZipFile(path).testzip() is None
    assert torch.load(path, weights_only=True)["weight"][0] == 1
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    assert manifest.read_config(path) == {"name": "ünï"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_damage_is_one_clear_error(tmp_path, kind):
    """I03 and FAULTS rows 10, 11."""
    path = write(tmp_path, 1)
    damage(path, kind)
    with pytest.raises(CheckpointError) as error:
        load.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_directory_a_missing_and_a_foreign_file_are_refused(tmp_path):
    torch.save({"weight": torch.ones(1)}, tmp_path / "foreign.pt")
    for path in (tmp_path, tmp_path / "missing.pt", tmp_path / "foreign.pt"):
        with pytest.raises(CheckpointError, match=str(path)):
            load.load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_newest_falls_back_to_the_one_before(tmp_path, kind, caplog):
    older, newest = write(tmp_path, 9), write(tmp_path, 1_000_000)
    os.utime(older, (0, 0))
    assert find.newest_valid(tmp_path) == newest
    newest.write_bytes(write(tmp_path / "other", 1).read_bytes())  # a valid file whose weights "flipped weight" can find
    damage(newest, kind)
    assert find.newest_valid(tmp_path) == older
    assert "falling back" in caplog.text
    damage(older, "half")
    with pytest.raises(CheckpointError, match="all 2 checkpoints are damaged"):
        find.newest_valid(tmp_path)


def test_keeps_the_newest_and_the_best(tmp_path):
    for step in (1, 2, 10, 11):
        write(tmp_path, step, is_best=step == 2, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.pt", "step-00000010.pt", "step-00000011.pt"]
    assert load.load(tmp_path / "best.pt")["weight"][0] == 2
    assert find.resolve(str(tmp_path), best=True).name == "best.pt"
    assert find.resolve(str(tmp_path), best=False).name == "step-00000011.pt"


def test_a_failed_write_leaves_the_old_and_no_temporary_file(tmp_path, monkeypatch):
    """I05: the disk fills up in the middle."""
    first = write(tmp_path, 1, is_best=True)
    before = first.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 1, is_best=True)
    assert first.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("links", [True, False])
def test_a_second_name_is_a_whole_file_or_the_old_one(tmp_path, monkeypatch, links):
    """Also where there are no hard links and the disk fills up while the bytes are copied."""

    def refuse(source, target):
        raise OSError(1, "Operation not permitted")

    def full(source, target):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    first, second, best = write(tmp_path, 1), write(tmp_path, 2), tmp_path / "best.pt"
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    find.give_name(first, best)
    first.unlink()
    assert load.load(best)["weight"][0] == 1
    if not links:
        monkeypatch.setattr(find.shutil, "copyfile", full)
        with pytest.raises(OSError, match="No space left"):
            find.give_name(second, best)
        assert load.load(best)["weight"][0] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "step-00000002.pt"]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
    """I06."""
    (tmp_path / "step-00000005.tmp").write_bytes(b"half")
    find.remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_hostile_pickle_runs_no_code(tmp_path):
    """FAULTS row 13: even with a right digest."""

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/owned",)

    path = save.write_checkpoint(tmp_path, {"config": {}, "weight": Hostile()}, about={"step": 1}, is_best=False, keep=1)
    with pytest.raises(CheckpointError, match="can't be loaded safely"):
        load.load(path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(("free", "existing", "fits"), [(400, 0, True), (399, 0, False), (300, 100, True), (299, 100, False)])
def test_a_disk_that_is_too_small_is_found_before_training(tmp_path, monkeypatch, free, existing, fits):
    """H07: two kept, the best and one being written, of 100 bytes each."""
    (tmp_path / "step-00000001.pt").write_bytes(bytes(existing))
    monkeypatch.setattr(save.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    if fits:
        save.refuse_full_disk(tmp_path, size=100, keep=2)
        return
    with pytest.raises(CheckpointError, match=r"free some space, lower save\.keep or set hydra\.run\.dir"):
        save.refuse_full_disk(tmp_path, size=100, keep=2)


def test_the_best_is_the_last_resort(tmp_path):
    for step in (1, 2):
        write(tmp_path, step, is_best=step == 1)
    for path in find.step_files(tmp_path):
        path.unlink()
        path.write_bytes(b"damaged")
    assert find.newest_valid(tmp_path) == tmp_path / "best.pt"


def test_damaged_ones_set_aside_are_not_kept_for_new_ones(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step, is_best=False)
    find.set_aside(tmp_path, after=1)
    assert [path.name for path in find.step_files(tmp_path)] == ["step-00000001.pt"]
    assert sorted(path.name for path in tmp_path.glob("*.damaged")) == ["step-00000002.pt.damaged", "step-00000003.pt.damaged"]
