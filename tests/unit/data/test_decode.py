"""Odd but valid images are read rightly, broken ones are named."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from src.data.decode import decode, read_size, why_unreadable
from src.errors import DataError

NOISE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    """A picture without fine detail, so that JPEG and resizing change it little."""
    y, x = np.mgrid[:height, :width]
    return np.stack([255 * y / height, 255 * x / width, 128 + 60 * np.sin(x / 9)], axis=-1).astype(np.uint8)


def read(image: Image.Image, path: Path, *, size: int = 8, **options: Any) -> np.ndarray:
    """Save, decode, and give height x width x 3."""
    image.save(path, **options)
    return decode(path, size=size).transpose(1, 2, 0)


def test_jpeg_equals_pillow(tmp_path: Path) -> None:
    found = read(Image.fromarray(NOISE), tmp_path / "image.jpg")
    with Image.open(tmp_path / "image.jpg") as oracle:
        assert found.tobytes() == oracle.tobytes()


@pytest.mark.parametrize("suffix", ["bmp", "png", "tif", "ppm", "gif", "webp"])
def test_lossless_formats(tmp_path: Path, suffix: str) -> None:
    pixels = np.where(NOISE > 127, 255, 0).astype(np.uint8)  # Eight colours, which a palette holds exactly.
    options = {"lossless": True} if suffix == "webp" else {}
    assert (read(Image.fromarray(pixels), tmp_path / f"image.{suffix}", **options) == pixels).all()


def test_grey_fills_three_channels(tmp_path: Path) -> None:
    grey = NOISE[:, :, 0]
    assert (read(Image.fromarray(grey), tmp_path / "grey.png") == grey[:, :, None]).all()


def test_one_bit(tmp_path: Path) -> None:
    bits = NOISE[:, :, 0] > 127
    assert (read(Image.fromarray(bits), tmp_path / "bits.png") == 255 * bits[:, :, None]).all()


@pytest.mark.parametrize("suffix", ["png", "tif", "ppm"])
def test_sixteen_bit_grey_is_scaled(tmp_path: Path, suffix: str) -> None:
    wide = np.linspace(0, 65535, 64).reshape(8, 8).round().astype(np.uint16)
    expected = np.rint(wide / 65535 * 255)
    if suffix == "ppm":
        (tmp_path / "wide.ppm").write_bytes(b"P5 8 8 65535\n" + wide.astype(">u2").tobytes())
        found = decode(tmp_path / "wide.ppm", size=8).transpose(1, 2, 0)
    else:
        found = read(Image.fromarray(wide), tmp_path / f"wide.{suffix}")
    assert np.abs(found - expected[:, :, None]).max() == 0


@pytest.mark.parametrize("suffix", ["png", "gif"])
def test_palette(tmp_path: Path, suffix: str) -> None:
    indexed = Image.fromarray(NOISE).quantize(16)
    assert (read(indexed, tmp_path / f"palette.{suffix}") == np.asarray(indexed.convert("RGB"))).all()


def test_palette_with_transparency_lies_on_white(tmp_path: Path) -> None:
    indexed = Image.new("P", (8, 8), 0)
    indexed.putpalette([200, 0, 0, 0, 0, 200])
    indexed.paste(1, (0, 0, 8, 4))
    found = read(indexed, tmp_path / "palette.png", transparency=0)
    assert (found[:4] == [0, 0, 200]).all()
    assert (found[4:] == 255).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_lies_on_white(tmp_path: Path, mode: str) -> None:
    alpha = np.linspace(0, 255, 64).reshape(8, 8).astype(np.uint8)
    image = Image.fromarray(NOISE).convert(mode)
    image.putalpha(Image.fromarray(alpha))
    share = alpha[:, :, None] / 255
    expected = np.asarray(image.convert("RGBA"))[:, :, :3] * share + 255 * (1 - share)
    assert np.abs(read(image, tmp_path / "alpha.png") - expected).max() <= 1


def test_transparent_colour_lies_on_white(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:4] = [10, 20, 30]
    found = read(Image.fromarray(pixels), tmp_path / "key.png", transparency=(10, 20, 30))
    assert (found[:4] == 255).all()
    assert (found[4:] == 0).all()


def test_cmyk(tmp_path: Path) -> None:
    image = Image.fromarray(smooth(32, 32)).convert("CMYK")
    found = read(image, tmp_path / "cmyk.jpg", size=32, quality=100, subsampling=0)
    assert np.abs(found.astype(int) - smooth(32, 32)).mean() < 4


@pytest.mark.filterwarnings("ignore:The image decoding and encoding")
@pytest.mark.parametrize("transform", [0, 2], ids=["cmyk", "ycck"])
def test_cmyk_equals_torchvision(tmp_path: Path, transform: int) -> None:
    """Adobe's marker says which of the two the four channels are; torchvision has its own conversion."""
    stream = io.BytesIO()
    Image.fromarray(smooth(32, 32)).convert("CMYK").save(stream, "JPEG", quality=100, subsampling=0)
    content = bytearray(stream.getvalue())
    content[content.index(b"Adobe") + 11] = transform
    (tmp_path / "four.jpg").write_bytes(content)
    oracle = decode_image(torch.frombuffer(content, dtype=torch.uint8), mode=ImageReadMode.RGB)
    assert np.abs(decode(tmp_path / "four.jpg", size=32).astype(int) - oracle.numpy()).max() <= 2


def test_sixteen_bit_colour_png(tmp_path: Path) -> None:
    """Pillow can't write one, so it is put together by hand: 8 bits of each value are kept."""
    wide = np.random.default_rng(1).integers(0, 65536, (4, 4, 3)).astype(">u2")

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.tobytes() for row in wide)
    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    path = tmp_path / "wide.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    assert np.abs(decode(path, size=4).transpose(1, 2, 0) - wide.astype(float) / 257).max() <= 1


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "lime")]
    assert (read(frames[0], tmp_path / "moving.gif", save_all=True, append_images=frames[1:]) == [255, 0, 0]).all()


@pytest.mark.parametrize(("height", "width"), [(1, 3000), (3000, 1), (2, 900)])
def test_extreme_shapes_show_their_centre(tmp_path: Path, height: int, width: int) -> None:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[height // 3 : -(height // 3) or None, width // 3 : -(width // 3) or None] = [9, 80, 200]
    assert (read(Image.fromarray(pixels), tmp_path / "line.png", size=16) == [9, 80, 200]).all()


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", [b"Exif\0\0no header", b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01\x12"])
def test_damaged_exif_does_not_matter(tmp_path: Path, exif: bytes) -> None:
    assert (read(Image.fromarray(NOISE), tmp_path / "image.png", exif=exif) == NOISE).all()


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        (1, lambda stored: stored),
        (2, lambda stored: stored[:, ::-1]),
        (3, lambda stored: stored[::-1, ::-1]),
        (4, lambda stored: stored[::-1]),
        (5, lambda stored: stored.transpose(1, 0, 2)),
        (6, lambda stored: np.rot90(stored, -1)),
        (7, lambda stored: stored[::-1, ::-1].transpose(1, 0, 2)),
        (8, lambda stored: np.rot90(stored)),
    ],
)
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_exif_orientation(tmp_path: Path, suffix: str, orientation: int, turn: Callable[[np.ndarray], np.ndarray]) -> None:
    """The stored rows and columns mean what the EXIF standard says."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert (read(Image.fromarray(NOISE), tmp_path / f"turned.{suffix}", exif=exif) == turn(NOISE)).all()


@pytest.mark.parametrize(("height", "width"), [(96, 64), (64, 96), (64, 64)])
def test_not_square_equals_resize_and_centre_crop(tmp_path: Path, height: int, width: int) -> None:
    picture = Image.fromarray(smooth(height, width))
    oracle = v2.functional.center_crop(v2.functional.resize(picture, [32], interpolation=v2.InterpolationMode.BILINEAR), [32, 32])
    difference = np.abs(read(picture, tmp_path / "wide.png", size=32).astype(int) - np.asarray(oracle))
    assert difference[1:-1, 1:-1].max() <= 1  # The outermost pixels see the cut edge here and the picture's rest there.
    assert difference.max() <= 4


def test_one_pixel(tmp_path: Path) -> None:
    assert (read(Image.new("RGB", (1, 1), (1, 2, 3)), tmp_path / "dot.png", size=4) == [1, 2, 3]).all()


def test_size_from_the_header(tmp_path: Path) -> None:
    Image.new("L", (5, 3)).save(tmp_path / "small.png")
    assert read_size(tmp_path / "small.png") == (5, 3)


def encoded(form: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(smooth(64, 64)).save(stream, form)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (encoded("JPEG")[:-200], "truncated"),
        (encoded("PNG")[:150], "truncated"),
        (encoded("PNG")[:40], ""),
        (b"", "the file is empty"),
        (b"no image at all", "not an image"),
        (encoded("JPEG")[:20], ""),
    ],
)
def test_broken_files_are_named(tmp_path: Path, content: bytes, cause: str) -> None:
    """I12, fault 17."""
    path = tmp_path / "broken.jpg"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"broken\.jpg can't be read as an image \(.*{cause}") as caught:
        decode(path, size=8)
    assert "\n" not in str(caught.value)
    assert str(why_unreadable(path)) == str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jpg can't be read as an image \(the file is gone\)"):
        decode(tmp_path / "gone.jpg", size=8)


def test_folder_in_place_of_an_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    with pytest.raises(DataError, match=r"folder\.jpg can't be read as an image \(it is a folder\)"):
        decode(tmp_path / "folder.jpg", size=8)


def test_name_that_is_not_utf8_is_shown(tmp_path: Path) -> None:
    error = why_unreadable(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg")))
    assert r"caf\xe9.jpg can't be read" in str(error)


def test_whole_images_have_nothing_to_report(tmp_path: Path) -> None:
    Image.fromarray(NOISE).save(tmp_path / "fine.png")
    assert why_unreadable(tmp_path / "fine.png") is None


def test_pixels_without_agreed_white_are_refused(tmp_path: Path) -> None:
    for name, pixels in (("float.tif", np.ones((4, 4), np.float32)), ("long.tif", np.full((4, 4), 70000, np.int32))):
        Image.fromarray(pixels).save(tmp_path / name)
        with pytest.raises(DataError, match=rf"{name} .*no agreed white"):
            decode(tmp_path / name, size=4)


def test_a_block_that_can_not_be_written_again_still_turns_the_image(tmp_path: Path) -> None:
    """A tag of a wrong type beside the orientation."""
    exif = (
        b"Exif\0\0MM\0*\0\0\0\x08\0\x02"
        + struct.pack(">HHII", 0x0112, 3, 1, 6 << 16)
        + struct.pack(">HHII", 0x9286, 12, 1, 0)
        + b"\0\0\0\0"
    )
    assert (read(Image.fromarray(NOISE), tmp_path / "image.png", exif=exif) == np.rot90(NOISE, -1)).all()
