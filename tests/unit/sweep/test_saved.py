"""Files to start from, before anything is created: what is refused, and what is left to its reader."""

import pytest
import torch
from safetensors.torch import save_file

from src.checkpoint import manifest
from src.checkpoint.save import write_checkpoint
from src.errors import CheckpointError
from src.sweep.saved import refuse_damaged, refuse_foreign

WEIGHTS = {"w": torch.ones(300)}


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path, {"model": WEIGHTS, "config": {}}, about={"step": 1}, is_best=False, keep=1)


def test_every_kind_of_weights_file_passes(tmp_path, checkpoint):
    torch.save(WEIGHTS, tmp_path / "archive.pt")
    torch.save(WEIGHTS, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    save_file(WEIGHTS, tmp_path / "w.safetensors")
    for path in (checkpoint, tmp_path / "archive.pt", tmp_path / "old.pth", tmp_path / "w.safetensors"):
        refuse_foreign(path)


@pytest.mark.parametrize("content", [b"", b"P", b"text", b"\xff\xd8\xff\xe0", bytes(100)])
def test_what_is_obviously_something_else_is_refused(tmp_path, content):
    (tmp_path / "file.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"file\.pt \({len(content)} bytes\) is no weights file; give a checkpoint, a state dict"):
        refuse_foreign(tmp_path / "file.pt")


@pytest.mark.parametrize("refuse", [refuse_damaged, refuse_foreign])
def test_a_checkpoint_is_judged_anew_when_it_changes(checkpoint, refuse):
    """A sweep reads it once, but a file that was replaced meanwhile is another file."""
    refuse(checkpoint)
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="corrupt or not a checkpoint"):
        refuse(checkpoint)
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 1
    checkpoint.write_bytes(flipped)
    with pytest.raises(CheckpointError, match="does not match its SHA-256"):
        refuse(checkpoint)


@pytest.mark.parametrize(
    ("key", "value"), [("step", "7"), ("step", None), ("config", []), ("config", None), ("tracking", [1]), ("tracking", "run")]
)
def test_a_manifest_whose_digest_fits_may_still_be_strange(tmp_path, key, value):
    about = {"step": 1, "tracking": None, "config": {}} | {key: value}
    with (tmp_path / "signed.pt").open("wb+") as file:
        writer = manifest.HashingWriter(file)
        torch.save(WEIGHTS, writer)
        manifest.append(file, sha256=writer.sha256.hexdigest(), size=writer.size, about=about)
    with pytest.raises(CheckpointError, match=rf"signed\.pt: the {key} in its manifest is missing or of another type; give a checkpoint"):
        refuse_damaged(tmp_path / "signed.pt")


def test_a_plain_archive_cut_in_half_is_refused(tmp_path):
    torch.save(WEIGHTS, tmp_path / "archive.pt")
    (tmp_path / "half.pt").write_bytes((tmp_path / "archive.pt").read_bytes()[:700])
    with pytest.raises(CheckpointError, match="corrupt"):
        refuse_foreign(tmp_path / "half.pt")
