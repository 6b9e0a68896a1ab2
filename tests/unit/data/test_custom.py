"""Data sets of the user's own: what may be returned, seeds, labels and refusals."""

import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2

from src.config.schema import CustomDataConfig, Loader, Split
from src.data import Batch, Data, InputNeeds, build_data
from src.errors import ConfigError, DataError

from .conftest import MakeFolder, evaluation, placement

NEEDS = InputNeeds(None, min_image_size=1, default_image_size=8)


class Pixels(Dataset[Any]):
    """Items [n, H, W, C] as ``convert`` gives them; labels in turn."""

    def __init__(self, count: int = 12, *, side: int = 8, convert: Callable[[np.ndarray], Any] = np.asarray, classes: int = 3) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        self.targets = [number % classes for number in range(count)]
        self._convert = convert

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> Any:
        return self._convert(self.pixels[number]), self.targets[number]


class Noise(Pixels):
    """Each read draws from the three global generators; the numbers are the pixels."""

    def __getitem__(self, number: int) -> Any:
        draws = [int(torch.randint(256, ())), random.randrange(256), int(np.random.randint(256))]
        return np.tile(np.array(draws, dtype=np.uint8), (8, 8, 1)), self.targets[number]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CustomDataConfig]:
    """``offer(result, **options)`` gives a config whose factory returns ``result``."""

    def make(result: Any, **options: Any) -> CustomDataConfig:
        module = ModuleType("own")
        module.make = result if callable(result) and not isinstance(result, Dataset) else lambda: result  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "own", module)
        return CustomDataConfig(factory="own:make", **({"num_workers": 0, "mean": [0.0], "std": [1.0]} | options))

    return make


Offer = Callable[..., CustomDataConfig]


def build(config: CustomDataConfig, *, rank: int = 0, world_size: int = 1, seed: int = 0, batch_size: int = 4) -> Data:
    place = placement(rank, world_size)
    return build_data(config, batch_size=batch_size, accumulate=1, seed=seed, placement=place, needs=NEEDS)


def pixels(batches: Iterator[Batch]) -> dict[int, torch.Tensor]:
    """uint8 [C, S, S] by position."""
    return {
        position: (image * 255).round().to(torch.uint8)
        for batch in batches
        for position, image in zip(batch.index.tolist(), batch.images, strict=True)
    }


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        Image.fromarray,
        lambda p: torch.from_numpy(p).permute(2, 0, 1),
        lambda p: tv_tensors.Image(torch.from_numpy(p).permute(2, 0, 1)),
    ],
    ids=["array", "pil", "tensor", "tv_tensor"],
)
@pytest.mark.parametrize("loader", [Loader.workers, Loader.resident])
def test_kinds_of_images(offer: Offer, convert: Callable[[np.ndarray], Any], loader: Loader) -> None:
    dataset = Pixels(convert=convert)
    data = build(offer((dataset, Pixels(4)), loader=loader))
    found = pixels(data.train.epoch(0))
    assert sorted(found) == list(range(12))
    for position, image in found.items():
        assert image.permute(1, 2, 0).numpy().tobytes() == dataset.pixels[position].tobytes()
    assert (data.class_names, data.channels, data.image_size, data.val_source) == (["0", "1", "2"], 3, 8, "val")
    assert data.effective["loader"] == loader.value


@pytest.mark.parametrize(
    "convert",
    [lambda p: p[:, :, 0], lambda p: p[:, :, :1], lambda p: Image.fromarray(p[:, :, 0]), lambda p: torch.from_numpy(p[None, :, :, 0])],
    ids=["array [H, W]", "array [H, W, 1]", "pil", "tensor"],
)
def test_grey_images(offer: Offer, convert: Callable[[np.ndarray], Any]) -> None:
    dataset = Pixels(convert=convert)
    data = build(offer((dataset, dataset)))
    assert data.channels == 1
    for position, image in pixels(data.train.epoch(0)).items():
        assert image[0].numpy().tobytes() == dataset.pixels[position, :, :, 0].tobytes()


def test_grey_among_colour(offer: Offer) -> None:
    """As with files: a grey image has three equal channels; the other way round is refused."""
    grey, colour = (lambda p: p[:, :, 0]), np.asarray
    mixed = Pixels(convert=lambda p: p if p.sum() == first else p[:, :, 0])
    first = mixed.pixels[0].sum()
    found = pixels(build(offer((mixed, mixed))).train.epoch(0))
    assert (found[5].numpy() == mixed.pixels[5, :, :, 0]).all()
    with pytest.raises(DataError, match=r"item 0 .* has 3 channels and the first item has 1"):
        list(build(offer((Pixels(convert=grey), Pixels(convert=colour)), image_size=8)).val.batches())


def test_sizes_that_differ_are_resized_like_files(offer: Offer) -> None:
    sides = iter([8, 12] * 1000)
    picture = np.add.outer(np.arange(24), np.arange(24)).astype(np.uint8)[:, :, None].repeat(3, axis=2)
    dataset = Pixels(convert=lambda p: picture[: next(sides), :8])
    data = build(offer((dataset, dataset)))
    assert data.image_size == 8
    found = pixels(data.train.epoch(0)).values()
    oracle = v2.functional.center_crop(torch.from_numpy(picture[:12, :8]).permute(2, 0, 1), [8, 8])
    whole = torch.from_numpy(picture[:8, :8]).permute(2, 0, 1)
    assert all((image - whole.int()).abs().max() <= 1 or (image - oracle.int()).abs().max() <= 1 for image in found)
    assert any((image - oracle.int()).abs().max() <= 1 for image in found)


def test_own_randomness_belongs_to_places(offer: Offer) -> None:
    """F07: every image of an epoch its own draws, equal for a second run, any number of ranks and a late start."""

    def epoch(number: int, *, rank: int = 0, world_size: int = 1, seed: int = 0, start_step: int = 0) -> dict[int, torch.Tensor]:
        data = build(offer((Noise(48), Noise(4))), rank=rank, world_size=world_size, seed=seed, batch_size=8)
        return pixels(data.train.epoch(number, start_step=start_step))

    def colours(found: dict[int, torch.Tensor]) -> dict[int, tuple[int, ...]]:
        return {position: tuple(image[:, 0, 0].tolist()) for position, image in found.items()}

    alone = colours(epoch(0))
    assert [len({colour[channel] for colour in alone.values()}) > 30 for channel in range(3)] == [True] * 3
    assert len(set(alone.values())) == 48
    assert colours(epoch(0)) == alone
    assert colours(epoch(0, rank=0, world_size=2)) | colours(epoch(0, rank=1, world_size=2)) == alone
    assert colours(epoch(0, start_step=3)).items() < alone.items()
    assert colours(epoch(1)) != alone != colours(epoch(0, seed=1))


def test_evaluation_draws_the_same_each_time(offer: Offer) -> None:
    config = offer((Noise(8), Noise(9)))
    data = build(config)
    first, second = pixels(data.val.batches()), pixels(data.val.batches())
    again = evaluation(config, data, batch_size=1)
    third = pixels(again.batches())
    assert all(first[key].equal(second[key]) and first[key].equal(third[key]) for key in range(9))
    assert len({tuple(image[:, 0, 0].tolist()) for image in first.values()}) == 9


def test_global_generators_are_left_alone(offer: Offer) -> None:
    config = offer((Noise(8), Noise(8)))
    states = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    data = build(config)
    list(data.train.epoch(0))
    list(data.val.batches())
    assert torch.get_rng_state().equal(states[0])
    assert (random.getstate(), repr(np.random.get_state())) == states[1:]


def test_torchvisions_datasets_fit(offer: Offer, make_folder: MakeFolder) -> None:
    """Class names and labels without reading an image, also through Subset."""
    folder = datasets.ImageFolder(str(make_folder({"cat": 4, "dog": 6})), transform=v2.RandomHorizontalFlip())
    data = build(offer((Subset(folder, [9, 0, 1, 8]), Subset(folder, [2, 3, 7]), folder)))
    assert data.class_names == ["cat", "dog"]
    labels = {
        position: label
        for batch in data.train.epoch(0)
        for position, label in zip(batch.index.tolist(), batch.labels.tolist(), strict=True)
    }
    assert labels == {0: 1, 1: 0, 2: 0, 3: 1}
    assert (data.train_size, data.val_size) == (4, 3)


def test_labels_are_read_where_there_are_no_targets(offer: Offer) -> None:
    items = [(np.full((4, 4), number, np.uint8), np.int64(number % 2)) for number in range(10)]
    data = build(offer(items, val_fraction=0.2))
    assert (data.class_names, data.train_size, data.val_size, data.val_source) == (["0", "1"], 8, 2, "held out")
    for batch in data.train.epoch(0):
        assert ((batch.images[:, 0, 0, 0] * 255).round() % 2 == batch.labels).all()


def test_a_held_out_part_and_a_test_split(offer: Offer) -> None:
    config = offer((Pixels(12), None, Pixels(5)), val_fraction=0.25)
    data = build(config)
    assert (data.train_size, data.val_size, data.val_source) == (9, 3, "held out")
    assert evaluation(config, data, split=Split.test, batch_size=4).size == 5


def test_arguments_reach_the_factory(offer: Offer) -> None:
    config = offer(lambda count, side=8: (Pixels(count, side=side), Pixels(3, side=side)), kwargs={"count": 6, "side": 5})
    data = build(config)
    assert (data.train_size, data.image_size) == (6, 5)
    with pytest.raises(ConfigError, match=r"data\.kwargs"):
        build(offer(lambda count: Pixels(count), kwargs={"size": 6}))


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize(
    "result", [Endless(), iter([1, 2]), 7, None, (Pixels(), Endless())], ids=["iterable", "iterator", "int", "none", "val"]
)
def test_what_has_no_length_is_refused(offer: Offer, result: Any) -> None:
    """B05: equal steps on all ranks need a length."""
    with pytest.raises(ConfigError, match=r"data\.factory=own:make"):
        build(offer(lambda: result))


@pytest.mark.parametrize("result", [(Pixels(),), (Pixels(),) * 4, (None, Pixels())])
def test_wrong_tuples_are_refused(offer: Offer, result: Any) -> None:
    with pytest.raises(ConfigError, match=r"must return a dataset, \(train, val\) or \(train, val, test\)"):
        build(offer(lambda: result))


GOOD = np.zeros((4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((np.zeros((4, 4, 3), np.float32), 0), "float32 pixels; give uint8"),
        ((torch.zeros(3, 4, 4), 0), "leave out ToTensor and Normalize"),
        ((np.zeros((3, 4, 4), np.uint8), 0), r"shape \[3, 4, 4\]; give \[H, W\] or \[H, W, C\]"),
        ((torch.zeros(4, 4, 3, dtype=torch.uint8), 0), r"give \[C, H, W\] with 1 or 3 channels"),
        (("image.png", 0), "is a str; give a PIL image"),
        (GOOD, "is a ndarray; return a pair"),
        ((GOOD, 0.5), "label of type float"),
        ((GOOD, "cat"), "label of type str"),
    ],
)
def test_unusable_items_are_named(offer: Offer, item: Any, message: str) -> None:
    with pytest.raises(DataError, match=rf"item 0 of data\.factory=own:make.*{message}"):
        build(offer([item, item]))


def test_labels_out_of_range_are_refused(offer: Offer) -> None:
    with pytest.raises(DataError, match=r"val dataset .* label 3, but its 3 classes are numbered from 0 to 2"):
        build(offer((Pixels(), Pixels(classes=4))))
    with pytest.raises(DataError, match="label -1"):
        build(offer([(GOOD, -1), (GOOD, 0)]))


def test_targets_must_be_the_items_labels(offer: Offer) -> None:
    """A target_transform changes the items and not .targets."""
    dataset = Pixels()
    with_transform = type("Shifted", (Pixels,), {"__getitem__": lambda self, n: (self.pixels[n], 2 - self.targets[n])})()
    with pytest.raises(DataError, match=r"has the label 2 but the dataset's \.targets say 0"):
        build(offer((with_transform, dataset)))
    dataset.targets = ["a"] * 12
    with pytest.raises(DataError, match=r"\.targets of the train dataset .* must be 12 class numbers"):
        build(offer((dataset, dataset)))


def test_the_datasets_own_error_passes_with_a_note(offer: Offer) -> None:
    class Broken(Pixels):
        def __getitem__(self, number: int) -> Any:
            if number == 7:
                raise KeyError("my own mistake")
            return super().__getitem__(number)

    with pytest.raises(KeyError, match="my own mistake") as caught:
        build(offer((Broken(), Pixels())))
    assert caught.value.__notes__ == ["raised by item 7 of data.factory=own:make"]
    assert caught.traceback[-1].name == "__getitem__"


def test_an_empty_dataset_is_refused(offer: Offer) -> None:
    with pytest.raises(DataError, match=r"val dataset .* is empty"):
        build(offer((Pixels(), Pixels(0))))


def test_broken_items_can_not_be_skipped(offer: Offer) -> None:
    with pytest.raises(ConfigError, match=r"data\.skip_broken=1 can only leave out files"):
        build(offer(Pixels(), skip_broken=1))
