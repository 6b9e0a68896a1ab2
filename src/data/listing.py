"""Images to classify: which files a user's word means, and their pixels in batches."""

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from src.data.augment import send
from src.data.base import InputFormat, Placement
from src.data.decode import decode, printable
from src.data.decoder import Chunk, Decoder, useful_workers
from src.data.folder import EXTENSIONS
from src.data.images import FIRST
from src.data.preprocess import Preprocess
from src.data.sampler import eval_spans
from src.errors import DataError


def find_images(text: str) -> list[Path]:
    """The image files that ``text`` means.

    Those of a folder and its subfolders or of a glob pattern, sorted; one image; or those that a .txt file lists, in its order and
    relative to its folder. Hidden files and those without an image's extension are passed over, except in a list. Raises DataError
    if there is nothing.
    """
    path = Path(text)
    if os.path.isdir(path):  # false also for a name that is too long
        found = sorted(Path(folder, name) for folder, _, names in os.walk(path, followlinks=True) for name in names)
        found = [image for image in found if _is_image(image) and not _hidden(image.relative_to(path))]
        missing = f"holds no image ({', '.join(EXTENSIONS)})"
    elif os.path.isfile(path) and path.suffix.lower() == ".txt":
        found, missing = _listed(path), "lists no image"
    elif os.path.isfile(path):
        found, missing = [path], ""
    else:
        found = sorted(match for match in _matches(path) if match.is_file() and _is_image(match))
        missing = "does not exist" if not glob.has_magic(text) else "matches no image"
    if not found:
        raise DataError(
            f"predict.input={printable(text)} {missing}; give a folder, a glob pattern, an image or a .txt file that lists some"
        )
    return found


@dataclass(frozen=True)
class Listed:
    """A batch: ``rows`` (positions in the list), ``images`` float32 [B, C, H, W] on the device, and what is wrong with some of them."""

    rows: list[int]
    images: Tensor
    errors: dict[int, str]


class ListFeed:
    """This rank's batches of ``paths``, in order; each file is on exactly one rank, and no batch depends on the number of ranks."""

    def __init__(
        self, paths: list[Path], *, form: InputFormat, pixels: tuple[int, int], batch_size: int, num_workers: int, placement: Placement
    ) -> None:
        self._placement = placement
        self._preprocess = Preprocess(form, placement=placement)
        spans = eval_spans(len(paths), batch_size=batch_size, rank=placement.rank, world_size=placement.world_size)
        self._chunks = [Chunk(list(range(span.start, span.stop)), FIRST) for span in spans]
        read = partial(_read, paths, *pixels)
        workers = useful_workers(len(paths), num_workers)
        self._decoder = Decoder(read, num_workers=workers, pin_memory=workers > 0 and placement.device.type == "cuda")

    def batches(self) -> Iterator[Listed]:
        """The batches. A file that can't be read is black and has an error."""
        for chunk, (pixels, errors) in zip(self._chunks, self._decoder.stream(self._chunks), strict=True):
            yield Listed(chunk.rows, self._preprocess(send(pixels, self._placement.device)), errors)


def _read(paths: list[Path], channels: int, size: int, chunk: Chunk) -> tuple[Tensor, dict[int, str]]:
    pixels = torch.zeros(len(chunk.rows), channels, size, size, dtype=torch.uint8)
    target, errors = pixels.numpy(), {}
    for position, row in enumerate(chunk.rows):
        try:
            target[position] = decode(paths[row], size=size, channels=channels)
        except DataError as error:
            errors[row] = str(error)
    return pixels, errors


def _listed(path: Path) -> list[Path]:
    lines = path.read_text(encoding="utf-8-sig", errors="surrogateescape").split("\n")  # splitlines would end a line at odder characters
    return [path.parent / line.removesuffix("\r") for line in lines if line.strip()]


def _matches(pattern: Path) -> Iterator[Path]:
    """What a pattern means; the folders that exist on its way are no patterns, whatever characters are in their names."""
    root = next((parent for parent in pattern.parents if os.path.isdir(parent)), Path())
    yield from (root / name for name in glob.iglob(str(pattern.relative_to(root)), root_dir=root, recursive=True))


def _is_image(path: Path) -> bool:
    return path.name.lower().endswith(EXTENSIONS)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
