"""One image file to 8-bit RGB pixels.

What is odd but valid is read rightly: grey, palette, CMYK and 16-bit images, EXIF orientation, transparency (laid on
white). Images that are not square are resized by their shorter side and cropped at the centre.
"""

import os
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from src.errors import DataError

_TRANSPARENT = {"RGBA", "RGBa", "LA", "La", "PA"}
_SIXTEEN_BIT = {"I;16", "I;16B", "I;16L", "I;16N", "I"}
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what makes the image upright."""


def decode(path: Path, *, size: int, channels: int = 3) -> np.ndarray:
    """The image as uint8 [channels, size, size], RGB or grey. Raises DataError naming the path and the cause if it can't be read."""
    image = to_square(_read(path), size=size)
    return np.asarray(image.convert("L"))[None] if channels == 1 else np.asarray(image).transpose(2, 0, 1)


def why_unreadable(path: Path) -> DataError | None:
    """The error that ``decode`` would end with, after reading the whole file; None if it can be read."""
    try:
        _read(path)
    except DataError as error:
        return error
    return None


def to_square(image: Image.Image, *, size: int) -> Image.Image:
    """The image resized by its shorter side and cropped at the centre; untouched if it has that size."""
    return image if image.size == (size, size) else ImageOps.fit(image, (size, size), method=Image.Resampling.BILINEAR)


def read_size(path: Path) -> tuple[int, int]:
    """Width and height in pixels before any EXIF turn, from the header alone. Raises DataError like ``decode``."""
    try:
        with Image.open(path) as image:
            return image.size
    except Exception as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> DataError:
    """The error that a file which can't be read ends the run with."""
    if isinstance(error, FileNotFoundError):
        cause = "the file is gone"
    elif isinstance(error, IsADirectoryError):
        cause = "it is a folder"
    elif path.is_file() and path.stat().st_size == 0:
        cause = "the file is empty"
    elif isinstance(error, UnidentifiedImageError):
        cause = "not an image, or of an unknown format"
    else:
        cause = f"{type(error).__name__}: {error}"
    return DataError(
        f"{printable(path)} can't be read as an image ({cause}); replace or remove it, or leave such images out with data.skip_broken=N"
    )


def printable(path: Path | str) -> str:
    """The path as text that can be written anywhere, whatever the bytes of its name."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def to_rgb(image: Image.Image) -> Image.Image:
    """The image, loaded, as 8-bit RGB. Raises ValueError for pixels whose white isn't known."""
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode in _SIXTEEN_BIT:
        return Image.fromarray(_to_eight_bits(np.asarray(image))).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed white; convert them to 8 bits")
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _read(path: Path) -> Image.Image:
    """The whole image, upright. Raises DataError naming the path and the cause."""
    try:
        with Image.open(path) as image:
            return to_rgb(_upright(image))
    except Exception as error:  # Pillow's readers raise errors of many types on damaged files.
        raise unreadable(path, error) from error


def _upright(image: Image.Image) -> Image.Image:
    """The image as its EXIF says it was meant; a block of EXIF that is damaged says nothing and hurts no pixel."""
    image.load()  # turns TIFF images by itself
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # Pillow's parser raises errors of many types here, too.
        return image
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _to_eight_bits(pixels: np.ndarray) -> np.ndarray:
    """Grey values 0..65535 as 0..255, rounded."""
    wide = pixels.astype(np.int64)
    if wide.min() < 0 or wide.max() > 65535:
        raise ValueError("pixels of more than 16 bits have no agreed white; convert them to 8 bits")
    return ((wide + 128) // 257).astype(np.uint8)
