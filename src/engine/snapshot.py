"""What a checkpoint holds: from Parts to plain tensors and types, and back."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from torch import Tensor
from torch.optim import AdamW, Optimizer

from src.checkpoint.host import ALIGNMENT, host_bytes
from src.config import runfile
from src.engine.evaluate import Evaluation, Reliability
from src.engine.state import Parts, TrainState, planned_steps
from src.errors import CheckpointError
from src.runtime.seed import rng_state, seed_rank, set_rng_state

log = logging.getLogger(__name__)

SAME_STEPS = ("seed", "train.batch_size", "train.accumulate", "data.subset", "data.val_fraction", "data.split_seed")
"""Config keys that decide which images an optimizer step sees."""


COUNTERS = 4096
"""Bytes for a loss scale, counts of updates and the like."""


def save(parts: Parts, state: TrainState, *, last: bool) -> None:
    """Write a checkpoint of this step; all ranks call it, rank 0 writes, and waits until it is on the disk if it is the ``last``.

    Raises ``CheckpointError``, on all ranks together, when checkpoints keep failing to be written.
    """
    ranks = parts.parallel.gather(own_state(parts, state))
    with mean_buffers(parts, state):
        content = snapshot(parts, state) | {"ranks": ranks}
        if parts.writer is not None:  # it takes the tensors as they are now
            about = {"step": state.step, "epoch": state.epoch, "value": state.best_value, "tracking": tracking_ref(parts)}
            parts.writer.put(content, about=about, is_best=state.is_best)
    problem = None
    if parts.writer is not None:
        if last:
            parts.writer.wait()
        problem = parts.writer.problem(last=last)
    problem = parts.parallel.gather(problem)[0]
    if problem is not None:
        raise CheckpointError(problem)


def own_state(parts: Parts, state: TrainState) -> dict[str, Any]:
    """What each rank has for itself: random states, the log window under way and, in mid-epoch, its batch statistics."""
    return {
        "rng": rng_state(parts.rank.device),
        "meter": parts.meter.state_dict(),
        "buffers": [buffer.to("cpu", copy=True) for buffer in float_buffers(parts)] if differ(parts, state) else None,
    }


def differ(parts: Parts, state: TrainState) -> bool:
    """Whether ranks have batch statistics of their own: only in mid-epoch."""
    return parts.rank.world_size > 1 and state.epoch_step > 0


def float_buffers(parts: Parts) -> list[Tensor]:
    """The batch statistics of this rank, of the network and of its average."""
    return [buffer for network in parts.networks() for buffer in network.buffers() if buffer.is_floating_point()]


@contextmanager
def mean_buffers(parts: Parts, state: TrainState) -> Iterator[None]:
    """Batch statistics are the mean over ranks inside; in mid-epoch they are each rank's own again afterwards: a look changes nothing."""
    buffers = float_buffers(parts) if differ(parts, state) else []
    own = [buffer.clone() for buffer in buffers]
    parts.sync_buffers()
    yield
    for buffer, before in zip(buffers, own, strict=True):
        buffer.copy_(before)


def state_bytes(parts: Parts) -> int:
    """About the size of a checkpoint: weights and buffers, their average, and the optimizer's state, for AdamW two moments and a count."""
    tensors = sum(host_bytes(tensor) for tensor in parts.model.state_dict().values())
    weights = [host_bytes(parameter) for parameter in parts.model.parameters() if parameter.requires_grad]
    moments = 2 * sum(weights) + ALIGNMENT * len(weights) if isinstance(parts.optimizer, AdamW) else sum(weights)
    return tensors * (1 if parts.average is None else 2) + moments + COUNTERS


def snapshot(parts: Parts, state: TrainState) -> dict[str, Any]:
    """All but the random states, with whole tensors, complete on rank 0; all ranks call it."""
    data, parallel = parts.data, parts.parallel
    parts.precision.publish()
    return {
        "model": parallel.model_state(parts.model),
        "ema": None if parts.average is None else parallel.model_state(parts.average.model),
        "optimizer": parallel.optimizer_state(parts.optimizer),
        "schedule": parts.schedule.state_dict(),
        "precision": parts.precision.state_dict(),
        "state": asdict(state),
        "best_evaluation": None if parts.best_evaluation is None else asdict(parts.best_evaluation),
        "config": runfile.to_dict(parts.config),
        "class_names": list(data.class_names),
        "data": {
            "channels": data.channels,
            "image_size": data.image_size,
            "mean": list(data.mean),
            "std": list(data.std),
            "pixel_channels": data.pixel_channels,
            "pixel_size": data.pixel_size,
            "digest": data.digest,
            "num_classes": parts.num_classes,
        },
        "world_size": parts.rank.world_size,
    }


def restore(parts: Parts, payload: dict[str, Any]) -> TrainState:
    """Put a checkpoint's content into freshly built parts; returns the state to go on from.

    The optimizer's settings (weight decay, momentum, ...) are this run's, its state the checkpoint's. An epoch that was under way
    goes on if its steps are the same images, and starts anew otherwise. Raises ``CheckpointError`` for other data or another head.
    """
    refuse_other_data(parts, payload)
    parts.parallel.load_model(parts.model, payload["model"])
    parts.parallel.load_optimizer(parts.optimizer, with_own_settings(payload["optimizer"], parts.optimizer))
    parts.schedule.load_state_dict(payload["schedule"])
    parts.precision.load_state_dict(payload["precision"])
    parts.precision.refresh()
    if parts.average is not None:
        parts.parallel.load_model(parts.average.model, payload["ema"] or payload["model"])
    state = TrainState(**payload["state"])
    parts.best_evaluation = evaluation_from(payload["best_evaluation"])
    restore_own(parts, state, payload["ranks"])
    before, now = (runfile.flatten(config) for config in (payload["config"], parts.config))
    changed = [key for key in SAME_STEPS if before.get(key) != now.get(key)]
    if state.epoch_step and changed:
        log.warning("resume: %s changed, so epoch %d starts anew", ", ".join(changed), state.epoch + 1)
        state.epoch_step = 0
        parts.meter.reset()
    if before.get("objective.name") != now["objective.name"]:
        log.warning("resume: objective.name changed, so the best so far is forgotten")
        state.best_value, state.best_step, state.best_epoch, state.bad_evaluations = None, 0, 0, 0
        parts.best_evaluation = None
        parts.schedule.forget_best()
    parts.first_step = state.step
    steps_per_epoch = parts.data.train.steps_per_epoch
    parts.planned_steps = planned_steps(parts.config.train, steps_per_epoch, state)
    ahead = state.epoch * steps_per_epoch + state.epoch_step - state.step
    parts.schedule.plan(parts.planned_steps + ahead, ahead=ahead)
    return state


def with_own_settings(saved: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The saved state with ``optimizer``'s settings: where torch puts the state depends on them, too."""
    own = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return saved | {"param_groups": [group | settings for group, settings in zip(saved["param_groups"], own, strict=True)]}


def restore_own(parts: Parts, state: TrainState, ranks: list[dict[str, Any]]) -> None:
    """Give each rank what it had for itself, or new random numbers and the common statistics if there were more or fewer ranks."""
    parts.meter.load_state_dict([own["meter"] for own in ranks])
    rank = parts.rank
    if len(ranks) != rank.world_size:
        if rank.is_main:
            log.warning(
                "resume: the checkpoint is of %d ranks and this run has %d, so random numbers (dropout) are drawn anew from the seed",
                len(ranks),
                rank.world_size,
            )
        seed_rank(parts.config.seed, rank=rank.rank, step=state.step)
        return
    set_rng_state(ranks[rank.rank]["rng"], rank.device)
    if (buffers := ranks[rank.rank]["buffers"]) is not None:
        for buffer, saved in zip(float_buffers(parts), buffers, strict=True):
            buffer.copy_(saved)


def evaluation_from(saved: dict[str, Any] | None) -> Evaluation | None:
    """An evaluation out of a checkpoint."""
    return None if saved is None else Evaluation(**saved | {"reliability": Reliability(**saved["reliability"])})


def refuse_other_data(parts: Parts, payload: dict[str, Any]) -> None:
    """Raise ``CheckpointError`` unless classes, head and images are those of the checkpoint."""
    saved, data = payload["data"], parts.data
    if payload["class_names"] != data.class_names:
        raise CheckpointError(
            f"the checkpoint's classes are {payload['class_names'][:10]}, this run's {data.class_names[:10]}; resume with the same data"
        )
    if saved["num_classes"] != parts.num_classes:
        raise CheckpointError(
            f"the checkpoint's head has {saved['num_classes']} outputs, model.num_classes={parts.num_classes} here; use the same"
        )
    if saved["digest"] != data.digest:
        raise CheckpointError("the images are not those the checkpoint was trained on (their digest differs); resume with the same data")


def tracking_ref(parts: Parts) -> dict[str, str] | None:
    """The tracker's run, which the launcher writes down as soon as it is open."""
    path = parts.run_dir / "tracking.json"
    return json.loads(path.read_text()) if path.exists() else None
