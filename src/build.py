"""Composition root: config + rank -> parts, in the one correct order."""

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from src.checkpoint.weights import read_weights
from src.config import runfile
from src.config.resolve import WEIGHTS_BY_NAME
from src.config.schema import Config, CustomModelConfig, EvaluateConfig, ModelConfig
from src.data.base import Data, EvalFeed, InputFormat, InputNeeds, Placement
from src.data.build import build_data, build_eval
from src.engine.ema import WeightAverage, copy_for_average
from src.engine.meter import Meter
from src.engine.state import Parts
from src.errors import ConfigError
from src.handshake import shake_hands
from src.models import build_model, input_needs, load_pretrained, named_weights
from src.optim import Schedule, build_optimizer
from src.parallel import Parallel, build_parallel
from src.precision import Precision, build_precision
from src.runtime import memory, rank as ranks, seed
from src.runtime.progress import Progress
from src.runtime.pulse import SILENT, Pulse
from src.runtime.rank import Rank
from src.tracking.journal import Journal

log = logging.getLogger(__name__)


def train_parts(config: Config, *, run_dir: Path, rank: Rank, stop_requested: Callable[[], int], pulse: Pulse = SILENT) -> Parts:
    """Everything one rank trains with. All ranks call it; it joins the group of ranks.

    Order matters: threads before any work, the group before NCCL-backed devices are used, weights from the shared seed
    before the per-rank one, memory format and precision before the parallel wrapper, the optimizer over the final parameters.
    """
    effective = start_process(config, rank)
    parallel = build_parallel(config.parallel, rank=rank)
    parallel.enter()
    place = placement(config, rank)
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
    seed.seed_weights(config.seed)
    model = build_model(config.model, num_classes=num_classes, channels=data.channels, image_size=data.image_size)
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
    planned = planned_steps(config, data)
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
        average=average,
        precision=precision,
        parallel=parallel,
        optimizer=optimizer,
        schedule=schedule,
        meter=Meter(parallel),
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
class Evaluable:
    """What one rank evaluates with."""

    model: nn.Module
    feed: EvalFeed
    precision: Precision
    parallel: Parallel
    class_names: list[str]
    num_classes: int
    effective: dict[str, Any]


def evaluation_parts(config: EvaluateConfig, payload: dict[str, Any], *, rank: Rank) -> Evaluable:
    """A checkpoint's network with the data and precision of ``config``; joins the group of ranks."""
    effective = start_process(config, rank)
    parallel = build_parallel(config.parallel, rank=rank)
    parallel.enter()
    place = placement(config, rank)
    data = payload["data"]
    feed = build_eval(
        config.data,
        split=config.split,
        batch_size=config.train.batch_size,
        accumulate=config.train.accumulate,
        placement=place,
        form=InputFormat(data["channels"], data["image_size"], data["mean"], data["std"]),
        class_names=payload["class_names"],
    )
    model = place_model(load_model(payload, trust_code=config.trust_code), place)
    shake_hands(parallel, config, model, data={"images": feed.size, "class names": payload["class_names"]})
    precision = build_precision(config.precision, device=rank.device)
    model = precision.prepare(model)
    images = torch.zeros(*example_shape(payload), device=rank.device)
    computed = try_model(model, images, precision=precision, num_classes=data["num_classes"], name=payload["config"]["model"]["name"])
    return Evaluable(
        model=model,
        feed=feed,
        precision=precision,
        parallel=parallel,
        class_names=payload["class_names"],
        num_classes=data["num_classes"],
        effective=effective
        | {
            "backend": parallel.backend,
            "computed_dtype": computed,
            "channels_last": place.channels_last,
            "broken_images": feed.broken_images,
        },
    )


def load_model(payload: dict[str, Any], *, trust_code: bool) -> nn.Module:
    """The bare network of a checkpoint, on the CPU in float32, ready for evaluation: the average of its weights if it has one.

    Raises ``ConfigError`` for a network that a function of the user's own builds, unless ``trust_code`` allows to run it.
    """
    saved: Config = runfile.to_config(payload["config"])
    config, data = saved.model, payload["data"]
    if isinstance(config, CustomModelConfig) and not trust_code:
        raise ConfigError(f"the checkpoint's network comes from the function {config.factory}; add trust_code=true to let it run")
    model = build_model(config, num_classes=data["num_classes"], channels=data["channels"], image_size=data["image_size"])
    model.load_state_dict(payload["ema"] or payload["model"])
    return model.eval()


def start_from_weights(model: nn.Module, config: ModelConfig) -> None:
    """Put the weights of ``model.pretrained`` into the model and say which were left fresh."""
    source = str(config.pretrained)
    weights = named_weights(config) if source in WEIGHTS_BY_NAME else read_weights(Path(source))
    fresh = load_pretrained(model, weights, reset_head=config.reset_head, source=source)
    log.info("starting from the weights of %s%s", source, f"; not loaded: {', '.join(fresh)}" if fresh else "")


def example_shape(payload: dict[str, Any]) -> tuple[int, int, int, int]:
    """A small input batch [B, C, H, W] of a checkpoint's network."""
    data = payload["data"]
    return 2, data["channels"], data["image_size"], data["image_size"]


def start_process(config: Config, rank: Rank) -> dict[str, Any]:
    """Threads and kernels of this process; returns what was decided."""
    threads = ranks.use_threads(rank.local_world_size)
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
    """Where batches go. ``channels_last=auto`` is on where tensor cores compute; plain float32 kernels are faster without (benchmarks)."""
    channels_last = config.train.channels_last
    if channels_last == "auto":
        channels_last = rank.device.type == "cuda" and config.precision.name not in ("fp32", "o0")
    return Placement(rank.rank, rank.world_size, rank.local_world_size, rank.device, bool(channels_last))


def place_model(model: nn.Module, place: Placement) -> nn.Module:
    """The model on its device, in the memory format of its inputs."""
    model = model.to(place.device)
    return model.to(memory_format=torch.channels_last) if place.channels_last else model


def head_size(config: Config, class_names: list[str]) -> int:
    """Outputs of the head: as many as classes, or more if asked for."""
    if config.model.num_classes == "auto":
        return len(class_names)
    wanted = int(config.model.num_classes)
    if wanted < len(class_names):
        raise ConfigError(f"model.num_classes={wanted} is less than the {len(class_names)} classes of the data; use auto")
    return wanted


def planned_steps(config: Config, data: Data) -> int:
    """Optimizer steps of the whole plan."""
    planned = config.train.epochs * data.train.steps_per_epoch
    return min(planned, config.train.max_steps or planned)


@torch.no_grad()
def try_model(model: nn.Module, images: Tensor, *, precision: Precision, num_classes: int, name: str) -> str:
    """Run the network once and return the dtype that its first convolution or matmul really computed in.

    That dtype is recorded, whatever was asked for. Raises ``ConfigError`` for a network that can't take ``images`` or
    does not return logits [B, num_classes]; an error of the user's own network comes as it is.
    """
    seen: list[torch.dtype] = []
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)), model)
    hook = first.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    model.eval()
    try:
        with precision.autocast():
            logits = model(images)
    except (RuntimeError, ValueError, AssertionError) as error:
        if name == "custom" or isinstance(error, torch.OutOfMemoryError):
            raise
        side = images.shape[-1]
        raise ConfigError(
            f"model={name} can't take images of {side} x {side} pixels ({_first_line(error)}); set another data.image_size"
        ) from error
    finally:
        model.train()
        hook.remove()
    if not isinstance(logits, Tensor) or logits.shape != (len(images), num_classes):
        got = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ConfigError(
            f"model={name} returns {got} for {len(images)} images; it must return logits [{len(images)}, {num_classes}], a number a class"
        )
    tf32 = seen[0] == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return "tfloat32" if tf32 else str(seen[0]).removeprefix("torch.")


@torch.no_grad()
def refuse_lone_images(model: nn.Module, image: Tensor, *, micro_batch_size: int) -> None:
    """Raise ``ConfigError`` if micro-batches hold a single image and the network's batch norm can't train on one."""
    if micro_batch_size > 1:
        return
    try:
        deepcopy(model)(image)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            "train.batch_size leaves one image a rank and micro-batch, and the network's batch norm needs two; "
            "use a larger train.batch_size or a smaller train.accumulate"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
