"""Batches for the loop, from a store of pixels; the same for images that are resident and images that workers decode."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from src.config.schema import AugmentConfig
from src.data.augment import draw, send
from src.data.base import Batch, Placement
from src.data.images import FIXED, TRAINING
from src.data.mix import draw_mix
from src.data.preprocess import Preprocess
from src.data.sampler import Plan, Span, epoch_order, eval_spans


class Store(Protocol):
    """Where pixels come from."""

    def stream(self, order: Tensor, *, spans: Sequence[Span], index: Tensor, entropy: tuple[int, int, int]) -> Iterator[Tensor]:
        """uint8 [stop - start, C, S, S] on the device for each span of ``order``.

        ``index`` is ``order`` on the device; ``entropy`` seeds the own randomness of images that are not the same each time.
        """
        ...


@dataclass(frozen=True)
class Stock:
    """Pixels, squares of ``side``, their ``labels`` int64 [N] on the device, and the way from pixels to network input."""

    store: Store
    side: int
    labels: Tensor
    preprocess: Preprocess


class ShuffledFeed:
    """Training batches of one rank (a ``TrainFeed``): a new order and new augmentation each epoch, equal for equal seeds."""

    def __init__(self, stock: Stock, *, plan: Plan, augment: AugmentConfig, seed: int, placement: Placement) -> None:
        self._stock = stock
        self._plan = plan
        self._augment = augment
        self._seed = seed
        self._placement = placement
        self.steps_per_epoch = plan.steps_per_epoch
        self.images_per_epoch = plan.images_per_epoch

    def epoch(self, epoch: int, *, start_step: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch, from optimizer step ``start_step`` on."""
        stock, size, seed, device = self._stock, self._plan.size, self._seed, self._placement.device
        order = epoch_order(size, seed=seed, epoch=epoch)
        draws = draw(size, config=self._augment, seed=seed, epoch=epoch, side=stock.side).to(device)
        mix = draw_mix(size, config=self._augment, seed=seed, epoch=epoch, side=stock.preprocess.size)
        mix = mix and mix.to(device)
        spans = list(self._plan.spans(self._placement.rank, start_step=start_step))
        index = send(order, device)
        stream = stock.store.stream(order, spans=spans, index=index, entropy=(seed, epoch, TRAINING))
        for span, pixels in zip(spans, stream, strict=True):
            changed = draws.apply(pixels, start=span.start, stop=span.stop)
            batch = _batch(stock, span=span, index=index, pixels=changed)
            if mix is not None:
                batch.images, batch.mixed = mix.apply(batch.images, batch.labels, start=span.start, stop=span.stop)
            yield batch


class OrderedFeed:
    """Evaluation batches of one rank (an ``EvalFeed``): every image of the split once over all ranks."""

    def __init__(self, stock: Stock, *, batch_size: int, placement: Placement, broken_images: int) -> None:
        self._stock = stock
        self._batch_size = batch_size
        self._placement = placement
        self.size = len(stock.labels)
        self.broken_images = broken_images

    def batches(self) -> Iterator[Batch]:
        """This rank's batches in the order of the split."""
        stock, placement = self._stock, self._placement
        order = torch.arange(self.size)
        spans = list(eval_spans(self.size, batch_size=self._batch_size, rank=placement.rank, world_size=placement.world_size))
        index = send(order, placement.device)
        for span, pixels in zip(spans, stock.store.stream(order, spans=spans, index=index, entropy=FIXED), strict=True):
            yield _batch(stock, span=span, index=index, pixels=pixels)


def _batch(stock: Stock, *, span: Span, index: Tensor, pixels: Tensor) -> Batch:
    rows = index[span.start : span.stop]
    return Batch(stock.preprocess(pixels), stock.labels.index_select(0, rows), rows, span.window, span.last)
