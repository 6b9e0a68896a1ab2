"""One image file to 8-bit RGB pixels.

What is odd but valid is read rightly: grey, palette, CMYK and 16-bit images, EXIF orientation, transparency (laid on
white). Images that are not square are resized by their shorter side and cropped at the centre.
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from src.errors import DataError

_TRANSPARENT = {"RGBA", "RGBa", "LA", "La", "PA"}
_SIXTEEN_BIT = {"I;16", "I;16B", "I;16L", "I;16N", "I"}


def decode(path: Path, *, size: int) -> np.ndarray:
    """The image as uint8 [3, size, size]. Raises DataError naming the path and the cause if it can't be read."""
    try:
        with Image.open(path) as image:
            ImageOps.exif_transpose(image, in_place=True)
            rgb = _to_rgb(image)
            if rgb.size != (size, size):
                rgb = ImageOps.fit(rgb, (size, size), method=Image.Resampling.BILINEAR)
            return np.asarray(rgb).transpose(2, 0, 1)
    except Exception as error:  # Pillow's readers raise errors of many types on damaged files.
        raise unreadable(path, error) from error


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
    elif path.is_file() and path.stat().st_size == 0:
        cause = "the file is empty"
    elif isinstance(error, UnidentifiedImageError):
        cause = "not an image, or of an unknown format"
    else:
        cause = f"{type(error).__name__}: {error}"
    return DataError(f"{path} can't be read as an image ({cause}); every image must be readable: replace or remove it")


def _to_rgb(image: Image.Image) -> Image.Image:
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


def _to_eight_bits(pixels: np.ndarray) -> np.ndarray:
    """Grey values 0..65535 as 0..255, rounded."""
    wide = pixels.astype(np.int64)
    if wide.min() < 0 or wide.max() > 65535:
        raise ValueError("pixels of more than 16 bits have no agreed white; convert them to 8 bits")
    return ((wide + 128) // 257).astype(np.uint8)
