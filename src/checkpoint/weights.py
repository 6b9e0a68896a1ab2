"""Weights to start from, out of a checkpoint of this program or a file of somebody else's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from src.checkpoint.load import load, load_plain
from src.errors import CheckpointError

_FIX = "give a checkpoint of this program, a state dict saved by torch.save, or a .safetensors file"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU.

    That is the averaged or else the last weights of a checkpoint, verified; a state dict that ``torch.save`` wrote, by itself or
    under ``state_dict`` or ``model``; or the tensors of a ``.safetensors`` file.

    Raises:
        CheckpointError: the file is missing, damaged, empty, or holds something else. Nothing in it is ever run.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is {'a directory' if path.is_dir() else 'missing'}; {_FIX}")
    if path.suffix == ".safetensors":
        content: Any = _safetensors(path)
    elif _has_manifest(path):
        content = _unnested(load(path), "ema", "model")
    else:
        content = _unnested(load_plain(path, fix=_FIX), "state_dict", "model")
    if not isinstance(content, Mapping) or not content or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise CheckpointError(f"{path} ({path.stat().st_size} bytes) holds no state dict, which is tensors by name; {_FIX}")
    return {str(name): tensor for name, tensor in content.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # SafetensorError for most damage, KeyError or ValueError for a strange header
        raise CheckpointError(f"{path} ({path.stat().st_size} bytes) is not a safetensors file ({error}); {_FIX}") from None


def _has_manifest(path: Path) -> bool:
    """Whether something follows the last record of an archive, which is 22 bytes long: the manifest, or damage that verifying it finds."""
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
        file.seek(max(0, path.stat().st_size - 22))
        return is_archive and not file.read().startswith(b"PK\x05\x06")


def _unnested(content: Any, *keys: str) -> Any:
    if not isinstance(content, Mapping):
        return content
    return next((content[key] for key in keys if isinstance(content.get(key), Mapping)), content)
