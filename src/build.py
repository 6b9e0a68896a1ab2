"""Composition root: config + rank -> parts, in the one correct order."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from src.checkpoint.writer import Writer
from src.config.schema import CheckpointConfig, Config, EvaluateConfig, PredictConfig
from src.data.base import EvalFeed, InputFormat, InputNeeds, Placement
from src.data.build import build_data, build_eval
from src.data.decoder import resolve_workers
from src.data.listing import ListFeed
from src.data.sampler import eval_batch_size
from src.engine.buffers import HeldBuffers
from src.engine.ema import WeightAverage, copy_for_average
from src.engine.forward import Forward
from src.engine.meter import Meter
from src.engine.state import Parts, TrainState, planned_steps
from src.errors import ConfigError
from src.handshake import shake_hands
from src.models import build_model, input_needs
from src.network import example_shape, load_model, place_model, refuse_frozen, refuse_lone_images, start_from_weights, try_model
from src.optim import Schedule, build_optimizer
from src.parallel import Parallel, build_parallel
from src.precision import Precision, build_precision
from src.runtime import memory, rank as ranks, seed
from src.runtime.progress import Progress
from src.runtime.pulse import SILENT, Pulse
from src.runtime.rank import Rank
from src.tracking.journal import Journal

FeedT = TypeVar("FeedT")


def train_parts(config: Config, *, run_dir: Path, rank: Rank, stop_requested: Callable[[], int], pulse: Pulse = SILENT) -> Parts:
    """Everything one rank trains with. All ranks call it; it joins the group of ranks.

    Order matters: threads before any work, the group before NCCL-backed devices are used, weights from the shared seed
    before the per-rank one, memory format and precision before the parallel wrapper, the optimizer over the final parameters.
    """
    effective, parallel, place = join(config, rank)
    needs = input_needs(config.model)
    data = build_data(
        config.data,
        batch_size=config.train.batch_size,
        accumulate=config.train.accumulate,
        seed=config.seed,
        placement=place,
        needs=InputNeeds(needs.channels, needs.min_image_size, needs.image_size),
    )
    num_classes = head_size(config, data.class_names)
    refuse_idle_objective(config, num_classes)
    seed.seed_weights(config.seed)
    model = build_model(config.model, num_classes=num_classes, channels=data.channels, image_size=data.image_size)
    refuse_frozen(model)
    if config.model.pretrained is not None and config.resume is None:
        start_from_weights(model, config.model)
    model = place_model(model, place)
    about = {"training images": data.train_size, "validation images": data.val_size, "data digest": data.digest}
    shake_hands(parallel, config, model, data=about | {"class names": data.class_names})
    precision = build_precision(config.precision, device=rank.device, sum_shares=parallel.sum_shares_ if parallel.shares else None)
    working = precision.prepare(model)
    images = torch.zeros(2, data.channels, data.image_size, data.image_size, device=rank.device)
    computed = try_model(working, images, precision=precision, num_classes=num_classes, name=config.model.name)
    refuse_lone_images(working, images[:1], micro_batch_size=effective["micro_batch_size"] // parallel.num_replicas)
    start = None if config.train.ema_decay is None else copy_for_average(model)
    wrapped = parallel.wrap(working, precision)
    average = None
    if start is not None and config.train.ema_decay is not None:
        parallel.shard(start)
        average = WeightAverage(model, start, decay=config.train.ema_decay)
    optimizer = build_optimizer(config.optim, parallel.owned(model))
    planned = planned_steps(config.train, data.train.steps_per_epoch, TrainState())
    schedule = Schedule(config.schedule, optimizer, optim=config.optim, total_updates=planned, updates_per_epoch=data.train.steps_per_epoch)
    seed.seed_rank(config.seed, rank=rank.rank)
    return Parts(
        config=config,
        run_dir=run_dir,
        rank=rank,
        data=data,
        model=model,
        working=working,
        wrapped=wrapped,
        forward=Forward(wrapped, config.train.compile, fallback=config.train.compile_fallback),
        buffers=HeldBuffers(working),
        average=average,
        precision=precision,
        parallel=parallel,
        optimizer=optimizer,
        schedule=schedule,
        meter=Meter(parallel),
        writer=Writer(run_dir / "checkpoints", config.save) if rank.is_main else None,
        journal=Journal(run_dir / "metrics.jsonl") if rank.is_main else None,
        progress=Progress(planned, shown=rank.is_main),
        stop_requested=stop_requested,
        pulse=pulse,
        planned_steps=planned,
        effective=effective
        | data.effective
        | {
            "num_classes": num_classes,
            "backend": parallel.backend,
            "num_replicas": parallel.num_replicas,
            "computed_dtype": computed,
            "loss_scaling": precision.scaled,
            "fused": bool(optimizer.defaults.get("fused")),
            "channels_last": place.channels_last,
        },
    )


@dataclass
class Evaluable(Generic[FeedT]):
    """A saved network and the images for it, on one rank."""

    model: nn.Module
    feed: FeedT
    precision: Precision
    parallel: Parallel
    class_names: list[str]
    num_classes: int
    effective: dict[str, Any]


def evaluation_parts(config: EvaluateConfig, payload: dict[str, Any], *, rank: Rank) -> Evaluable[EvalFeed]:
    """A checkpoint's network with the data and precision of ``config``; joins the group of ranks."""
    effective, parallel, place = join(config, rank)
    feed = build_eval(
        config.data,
        split=config.split,
        batch_size=config.train.batch_size,
        accumulate=config.train.accumulate,
        placement=place,
        form=input_format(payload),
        pixel_size=payload["data"]["pixel_size"],
        class_names=payload["class_names"],
    )
    effective["broken_images"] = feed.broken_images
    return _evaluable(config, payload, feed, parallel=parallel, place=place, effective=effective, facts={"images": feed.size})


def prediction_parts(config: PredictConfig, payload: dict[str, Any], paths: list[Path], *, rank: Rank) -> Evaluable[ListFeed]:
    """A checkpoint's network, in the precision of ``config``, with the images to classify; joins the group of ranks."""
    effective, parallel, place = join(config, rank)
    feed = ListFeed(
        paths,
        form=input_format(payload),
        pixels=(payload["data"]["pixel_channels"], payload["data"]["pixel_size"]),
        batch_size=eval_batch_size(config.train.batch_size, accumulate=config.train.accumulate),
        num_workers=resolve_workers(config.data.num_workers, in_memory=False, local_world_size=place.local_world_size),
        placement=place,
    )
    names = hashlib.sha256(b"\0".join(map(os.fsencode, paths))).hexdigest()
    facts = {"images": len(paths), "names of images": names}
    return _evaluable(config, payload, feed, parallel=parallel, place=place, effective=effective, facts=facts)


def _evaluable(
    config: CheckpointConfig,
    payload: dict[str, Any],
    feed: FeedT,
    *,
    parallel: Parallel,
    place: Placement,
    effective: dict[str, Any],
    facts: dict[str, Any],
) -> Evaluable[FeedT]:
    data = payload["data"]
    model = place_model(load_model(payload, trust_code=config.trust_code), place)
    shake_hands(parallel, config, model, data=facts | {"class names": payload["class_names"]})
    precision = build_precision(config.precision, device=place.device)
    model = precision.prepare(model)
    images = torch.zeros(*example_shape(payload), device=place.device)
    computed = try_model(model, images, precision=precision, num_classes=data["num_classes"], name=payload["config"]["model"]["name"])
    return Evaluable(
        model=model,
        feed=feed,
        precision=precision,
        parallel=parallel,
        class_names=payload["class_names"],
        num_classes=data["num_classes"],
        effective=effective | {"backend": parallel.backend, "computed_dtype": computed, "channels_last": place.channels_last},
    )


def join(config: Config, rank: Rank) -> tuple[dict[str, Any], Parallel, Placement]:
    """Set up this process and join the group of ranks; what was decided, the parallel mode, and where batches go."""
    effective = start_process(config, rank)
    parallel = build_parallel(config.parallel, rank=rank)
    parallel.enter()
    return effective, parallel, placement(config, rank)


def input_format(payload: dict[str, Any]) -> InputFormat:
    """How pixels become input of a checkpoint's network."""
    data = payload["data"]
    return InputFormat(data["channels"], data["image_size"], data["mean"], data["std"])


def start_process(config: Config, rank: Rank) -> dict[str, Any]:
    """Threads and kernels of this process; returns what was decided."""
    threads = ranks.use_threads(rank.local_world_size)
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)  # what names no device, as torch.cuda.synchronize(), means this one
    seed.use_deterministic_kernels(config.deterministic)
    memory.reset_peak(rank.device)
    return {
        "device": str(rank.device),
        "num_processes": rank.world_size,
        "threads_per_rank": threads,
        "effective_batch_size": config.train.batch_size,
        "micro_batch_size": config.train.batch_size // (rank.world_size * config.train.accumulate),
    }


def placement(config: Config, rank: Rank) -> Placement:
    """Where batches go. ``channels_last=auto`` is on for a GPU."""
    channels_last = config.train.channels_last
    if channels_last == "auto":
        channels_last = rank.device.type == "cuda"
    return Placement(rank.rank, rank.world_size, rank.local_world_size, rank.device, bool(channels_last))


def head_size(config: Config, class_names: list[str]) -> int:
    """Outputs of the head: as many as classes, or more if asked for."""
    if config.model.num_classes == "auto":
        return len(class_names)
    wanted = int(config.model.num_classes)
    if wanted < len(class_names):
        raise ConfigError(f"model.num_classes={wanted} is less than the {len(class_names)} classes of the data; use auto")
    return wanted


def refuse_idle_objective(config: Config, num_classes: int) -> None:
    """Raise ``ConfigError`` for the top-5 accuracy of so few classes that it is always 1: the first evaluation would stay the best."""
    if config.objective.name == "val/top5" and num_classes <= 5:
        raise ConfigError(f"objective.name=val/top5 is always 1 with {num_classes} classes; use val/accuracy or val/loss")
