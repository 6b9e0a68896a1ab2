"""Where inf or NaN comes from: one batch again, on a copy of the network, with a look at every module's output and gradient."""

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.data.base import Batch
from src.engine.state import Parts
from src.engine.step import training_loss
from src.runtime.seed import rng_state, set_rng_state

log = logging.getLogger(__name__)

FILE = "overflow.json"
MAX_INDICES = 20
LARGEST_FLOAT16 = 65504.0


def diagnose(parts: Parts, batches: list[Batch], *, step: int) -> dict[str, Any]:
    """Find out what in the micro-batches of step number ``step`` made it non-finite, log it with advice and write ``overflow.json``.

    All ranks call it together, each with its own ``batches``; the first rank that finds something is reported. Weights, statistics,
    random states and gradients stay as they are. Slow: it reads the host for every module.
    """
    own = first_culprit([examine(parts, batch) for batch in batches])
    report = first_culprit(parts.parallel.gather(own | {"rank": parts.rank.rank, "step": step}))
    if parts.rank.is_main:
        (parts.run_dir / FILE).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        log.warning("step %d: %s. %s", step, sentence(report), report["advice"])
    return report


def first_culprit(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The first report that found something, or the last one."""
    return next((found for found in reports if found["where"] != "nowhere"), reports[-1])


def examine(parts: Parts, batch: Batch) -> dict[str, Any]:
    """This rank's findings as plain types."""
    scale = float(parts.precision.loss_scale())
    with _untouched_random(parts.rank.device):
        model = deepcopy(parts.parallel.whole(parts.working)).train()
        for parameter in model.parameters():
            parameter.grad = None
        watch = _Watch(model)
        with parts.precision.autocast():
            logits = model(batch.images)
            loss = training_loss(logits, batch, label_smoothing=parts.config.train.label_smoothing)
        with torch.no_grad():
            each = F.cross_entropy(logits.float(), batch.labels, reduction="none")
        (loss * scale).backward()
    bad_parameters = [name for name, p in model.named_parameters() if p.grad is not None and not _finite(p.grad)]
    bad_inputs = [int(i) for i in batch.index[~torch.isfinite(batch.images.flatten(1)).all(dim=1)]]
    if bad_inputs:
        where, module = "input", None
    elif watch.forward is not None:
        where, module = "forward", watch.forward
    elif not _finite(loss):
        where, module = "loss", None
    elif watch.backward is not None or bad_parameters:
        where, module = "backward", watch.backward
    else:
        where, module = "nowhere", None
    bad_images = bad_inputs or [int(i) for i in batch.index[~torch.isfinite(each)]]
    return {
        "where": where,
        "module": module,
        "parameter": bad_parameters[0] if bad_parameters else None,
        "largest_input": watch.largest_input if where == "forward" else None,
        "sample_indices": (bad_images or [int(i) for i in batch.index])[:MAX_INDICES],
        "samples_are_the_culprits": bool(bad_images),
        "loss": _plain(float(loss.detach())),
        "loss_scale": scale,
        "precision": parts.precision.name,
        "dtype": str(parts.precision.dtype).removeprefix("torch."),
        "advice": advice(where, half=parts.precision.dtype == torch.float16, module=module),
    }


def sentence(report: dict[str, Any]) -> str:
    """What was found, in words."""
    place = {
        "input": "the images hold inf or NaN",
        "forward": f"the output of module {report['module']} is the first with inf or NaN ({report['dtype']}, forward)",
        "loss": "the loss is inf or NaN while the network's output is finite",
        "backward": f"the gradient at module {report['module']} is the first with inf or NaN (loss scale {report['loss_scale']:g})",
        "nowhere": f"the batch is finite when computed again (loss scale {report['loss_scale']:g} now)",
    }[report["where"]]
    parameter = f", first parameter {report['parameter']}" if report["parameter"] else ""
    whose = "of the images" if report["samples_are_the_culprits"] else "among the images"
    return f"{place}{parameter}; loss {report['loss']}, {whose} {report['sample_indices']} (rank {report['rank']})"


def advice(where: str, *, half: bool, module: str | None) -> str:
    """What to change."""
    override = f"\"precision.overrides=['{module}=float32']\"" if module else "precision.overrides"
    if where == "input":
        return "Look at these images and at data.mean and data.std"
    if where == "nowhere":
        return "A dynamic loss scale finds its level this way; if it goes on, lower optim.lr or set train.clip_norm"
    if where == "backward" and half:
        return f"Lower precision.scaler.init_scale, use {override} or precision.dtype=bfloat16"
    if where == "forward" and half:
        return f"float16 ends at 65504: use {override}, precision.dtype=bfloat16 or a lower optim.lr"
    return "Lower optim.lr or set train.clip_norm, and resume from the last checkpoint"


class _Watch:
    """The first module in the forward pass whose output is not finite, and the first in the backward pass whose output's gradient isn't."""

    def __init__(self, model: nn.Module) -> None:
        self.forward: str | None = None
        self.backward: str | None = None
        self.largest_input: float | str | None = None
        for name, module in model.named_modules():
            if name and not list(module.children()):
                module.register_forward_hook(self._after(name))

    def _after(self, name: str) -> Any:
        def check_gradient(gradient: Tensor) -> None:
            if self.backward is None and not _finite(gradient):
                self.backward = name

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            for tensor in _tensors(output):
                if self.forward is None and not _finite(tensor):
                    self.forward = name
                    self.largest_input = max((_plain(float(t.detach().abs().max())) for t in _tensors(args)), default=None, key=float)
                if tensor.requires_grad:  # a hook on the tensor: modules that write into their input allow no other
                    tensor.register_hook(check_gradient)

        return hook


@contextmanager
def _untouched_random(device: torch.device) -> Iterator[None]:
    state = rng_state(device)
    try:
        yield
    finally:
        set_rng_state(state, device)


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, tuple | list) else (value,)
    return [tensor for tensor in values if isinstance(tensor, Tensor) and tensor.is_floating_point()]


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _plain(value: float) -> float | str:
    """JSON has no inf and NaN."""
    return value if math.isfinite(value) else str(value)
