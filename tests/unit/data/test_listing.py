"""What a word for images means, and that a batch holds what evaluation would see."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from src.data.base import InputFormat, Placement
from src.data.listing import ListFeed, find_images
from src.errors import DataError


def image(path, value=0, *, size=(8, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255 - value)).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    for name in ("b/2.png", "a/10.jpg", "a/9.JPG", "a/.hidden.png", ".git/x.png", "ünï, 'q\"/1.png"):
        image(tmp_path / name)
    (tmp_path / "a/notes.txt").write_text("no image")
    return tmp_path


def names(found, folder):
    return [path.relative_to(folder).as_posix() for path in found]


def test_a_folder_is_searched_through_in_sorted_order(folder):
    assert names(find_images(str(folder)), folder) == ["a/10.jpg", "a/9.JPG", "b/2.png", "ünï, 'q\"/1.png"]


def test_a_pattern_an_image_and_a_list(folder):
    assert names(find_images(f"{folder}/*/*.png"), folder) == ["b/2.png", "ünï, 'q\"/1.png"]
    assert names(find_images(f"{folder}/**/1*"), folder) == ["a/10.jpg", "ünï, 'q\"/1.png"]
    assert find_images(str(folder / "b/2.png")) == [folder / "b/2.png"]
    (folder / "list.txt").write_text(f"b/2.png\n\na/missing.png\n{folder}/a/9.JPG\n")
    assert find_images(str(folder / "list.txt")) == [folder / "b/2.png", folder / "a/missing.png", folder / "a/9.JPG"]


def test_a_list_may_come_from_any_editor_and_hold_any_name(tmp_path):
    odd = [b"a\xe2\x80\xa8b.png", b"tab\tand\x0bmore.png", b"not utf-8 \xff.png"]
    (tmp_path / "list.TXT").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(odd) + b"\r\n\r\n")
    assert [os.fsencode(path.name) for path in find_images(str(tmp_path / "list.TXT"))] == odd


def test_only_what_is_no_folder_is_a_pattern(tmp_path):
    image(tmp_path / "set [1]*/a/1.png")
    image(tmp_path / "set 1/a/2.png")
    base = tmp_path / "set [1]*"
    assert find_images(str(base)) == find_images(f"{base}/*/*.png") == find_images(f"{base}/**/1*") == [base / "a/1.png"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * 300, "does not exist"),
        ("nothing", "does not exist"),
        ("*.gif", "matches no image"),
        ("empty", "holds no image"),
        ("empty.txt", "lists no image"),
    ],
)
def test_nothing_to_classify_is_an_error_that_says_where(tmp_path, text, reason):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(DataError, match=rf"predict\.input={tmp_path}.*{reason}".replace("*", ".*", 1)):
        find_images(str(tmp_path / text))


@pytest.mark.parametrize("world_size", [1, 2, 9])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_is_on_one_rank_and_preprocessed_as_torch_would(tmp_path, world_size, channels):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (11, 8, 8, 3), dtype=np.uint8)
    paths = [tmp_path / f"{number}.png" for number in range(11)]
    for path, values in zip(paths, pixels, strict=True):
        Image.fromarray(values).save(path)
    paths[4].write_text("not an image")
    form = InputFormat(channels, 12, [0.4] * channels, [0.2] * channels)
    seen, errors = {}, {}
    for rank in range(world_size):
        place = Placement(rank, world_size, world_size, torch.device("cpu"), channels_last=False)
        feed = ListFeed(paths, form=form, pixels=(channels, 8), batch_size=2, num_workers=0, placement=place)
        for batch in feed.batches():
            assert not seen.keys() & set(batch.rows)
            seen |= dict(zip(batch.rows, batch.images, strict=True))
            errors |= batch.errors
    assert sorted(seen) == list(range(11))
    assert list(errors) == [4]
    assert str(paths[4]) in errors[4]
    for row in (0, 10):
        opened = Image.open(paths[row])
        values = torch.from_numpy(np.asarray(opened.convert("L") if channels == 1 else opened).astype(np.float64) / 255)
        values = values[None] if channels == 1 else values.permute(2, 0, 1)
        large = torch.nn.functional.interpolate(values[None], size=(12, 12), mode="bilinear")[0]
        torch.testing.assert_close(seen[row].double(), (large - 0.4) / 0.2, atol=1e-5, rtol=1e-5)
