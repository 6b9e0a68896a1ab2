"""Composition root: config + rank -> parts, in the one correct order."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from src.config.schema import Config, EvaluateConfig
from src.data.base import Data, EvalFeed, InputFormat, InputNeeds, Placement
from src.data.build import build_data, build_eval
from src.engine.meter import Meter
from src.engine.state import Parts
from src.errors import ConfigError
from src.models import MODELS, build_model
from src.optim import Schedule, build_optimizer
from src.parallel import Parallel, build_parallel
from src.precision import Precision, build_precision
from src.runtime import memory, rank as ranks, seed
from src.runtime.progress import Progress
from src.runtime.rank import Rank
from src.tracking.journal import Journal


def train_parts(config: Config, *, run_dir: Path, rank: Rank, stop_requested: Callable[[], int]) -> Parts:
    """Everything one rank trains with. All ranks call it; it joins the group of ranks.

    Order matters: threads before any work, the group before NCCL-backed devices are used, weights from the shared seed
    before the per-rank one, memory format and precision before the parallel wrapper, the optimizer over the final parameters.
    """
    effective = start_process(config, rank)
    parallel = build_parallel(config.parallel, rank=rank)
    parallel.enter()
    place = placement(config, rank)
    spec = MODELS[config.model.name]
    data = build_data(
        config.data,
        batch_size=config.train.batch_size,
        accumulate=config.train.accumulate,
        seed=config.seed,
        placement=place,
        needs=InputNeeds(spec.channels, spec.min_image_size, spec.image_size),
    )
    num_classes = head_size(config, data.class_names)
    seed.seed_weights(config.seed)
    model = place_model(build_model(config.model.name, num_classes=num_classes, channels=data.channels), place)
    precision = build_precision(config.precision, device=rank.device)
    model = precision.prepare(model)
    computed = observed_dtype(model, torch.zeros(2, data.channels, data.image_size, data.image_size, device=rank.device), precision)
    wrapped = parallel.wrap(model)
    optimizer = build_optimizer(config.optim, model)
    planned = planned_steps(config, data)
    seed.seed_rank(config.seed, rank=rank.rank)
    return Parts(
        config=config,
        run_dir=run_dir,
        rank=rank,
        data=data,
        model=model,
        wrapped=wrapped,
        precision=precision,
        parallel=parallel,
        optimizer=optimizer,
        schedule=Schedule(config.schedule, optimizer, optim=config.optim, total_updates=planned),
        meter=Meter(parallel),
        journal=Journal(run_dir / "metrics.jsonl") if rank.is_main else None,
        progress=Progress(planned, shown=rank.is_main),
        stop_requested=stop_requested,
        planned_steps=planned,
        effective=effective
        | data.effective
        | {
            "num_classes": num_classes,
            "backend": parallel.backend,
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
    model = load_model(payload)
    precision = build_precision(config.precision, device=rank.device)
    model = precision.prepare(place_model(model, place))
    shape = example_shape(payload)
    computed = observed_dtype(model, torch.zeros(*shape, device=rank.device), precision)
    return Evaluable(
        model=model,
        feed=feed,
        precision=precision,
        parallel=parallel,
        class_names=payload["class_names"],
        num_classes=data["num_classes"],
        effective=effective | {"backend": parallel.backend, "computed_dtype": computed, "channels_last": place.channels_last},
    )


def load_model(payload: dict[str, Any]) -> nn.Module:
    """The bare network of a checkpoint, on the CPU in float32, ready for evaluation."""
    name = payload["config"]["model"]["name"]
    data = payload["data"]
    model = build_model(name, num_classes=data["num_classes"], channels=data["channels"])
    model.load_state_dict(payload["model"])
    return model.eval()


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
    """Where batches go."""
    channels_last = rank.device.type == "cuda" if config.train.channels_last == "auto" else bool(config.train.channels_last)
    return Placement(rank.rank, rank.world_size, rank.local_world_size, rank.device, channels_last)


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
def observed_dtype(model: nn.Module, images: Tensor, precision: Precision) -> str:
    """The dtype the first convolution or matmul really computes in: what is recorded, whatever was asked for."""
    seen: list[torch.dtype] = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))
    hook = first.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    model.eval()
    with precision.autocast():
        model(images)
    model.train()
    hook.remove()
    return str(seen[0]).removeprefix("torch.")
