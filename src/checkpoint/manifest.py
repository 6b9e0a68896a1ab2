"""The manifest at the end of a checkpoint file: readable without torch, and what makes damage visible.

A checkpoint is what ``torch.save`` writes, a zip archive, plus a zip comment that holds a JSON manifest: SHA-256 and size of
the archive, the step, the config, and a digest of the manifest itself. Any zip or torch reader still opens the file; one flipped
byte or a missing tail changes a digest. One file, one rename: archive and manifest can't get out of step.
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, BinaryIO, cast

from src.errors import CheckpointError

FORMAT = 4
_END_OF_ARCHIVE = b"PK\x05\x06"
_LONGEST = 65535
"""A zip comment's length field has 16 bits."""


class HashingWriter:
    """A binary file that hashes what passes through."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Write and hash."""
        self.sha256.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


def append(file: BinaryIO, *, sha256: str, size: int, about: dict[str, Any]) -> None:
    """Turn a finished archive of ``size`` bytes, open for update, into a checkpoint."""
    manifest = {"format": FORMAT, "sha256": sha256, "size": size, **about}
    comment = _as_json(manifest | {"seal": _seal(manifest)})
    if len(comment) > _LONGEST:
        raise CheckpointError(
            f"the config takes {len(comment)} bytes as JSON; a checkpoint has room for {_LONGEST}: shorten model or data kwargs"
        )
    file.seek(size - 2)  # the last field of an archive without a comment is the comment's length
    file.write(struct.pack("<H", len(comment)) + comment)


def read(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, not yet verified.

    Raises ``CheckpointError`` for anything that is not a checkpoint of ours.
    """
    try:
        with path.open("rb") as file:
            length = file.seek(0, 2)
            file.seek(max(0, length - _LONGEST - 22))
            tail = file.read()
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read ({error.strerror}); give a checkpoint file of this program") from None
    start = tail.rfind(_END_OF_ARCHIVE + bytes(4))
    try:
        manifest = json.loads(tail[start + 22 :]) if start >= 0 else None
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or not {"sha256", "format", "size"} <= manifest.keys() or not isinstance(manifest["size"], int):
        raise CheckpointError(f"{path} ({length} bytes) is corrupt or not a checkpoint of this program; give another checkpoint file")
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{path} has checkpoint format {manifest['format']}, this version reads {FORMAT}")
    if manifest.pop("seal", None) != _seal(manifest):
        raise CheckpointError(f"{path} is damaged: its manifest does not match its seal; use another checkpoint of the run")
    return cast(dict[str, Any], manifest)


def _as_json(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, ensure_ascii=False, separators=(",", ":")).encode()


def _seal(manifest: dict[str, Any]) -> str:
    """The digest of the manifest itself: that of the archive does not cover what is said of it."""
    return hashlib.sha256(_as_json(manifest)).hexdigest()


def verify(path: Path) -> dict[str, Any]:
    """The manifest, after comparing the archive with its digest."""
    manifest = read(path)
    sha256 = hashlib.sha256()
    left = manifest["size"] - 2
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, 1 << 22))):
            sha256.update(chunk)
            left -= len(chunk)
    sha256.update(bytes(2))  # the digest is of the archive before its comment, whose length was 0
    if left or sha256.hexdigest() != manifest["sha256"]:
        raise CheckpointError(f"{path} is damaged: its content does not match its SHA-256; use another checkpoint of the run")
    return manifest


def read_config(path: Path) -> dict[str, Any]:
    """The config of the run that wrote the checkpoint, as plain types."""
    return cast(dict[str, Any], read(path)["config"])
