"""The network of a run: from a checkpoint or from weights, on its device, tried out before anything else is built on it."""

import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from src.checkpoint.weights import read_weights
from src.config import runfile
from src.config.resolve import WEIGHTS_BY_NAME
from src.config.schema import Config, CustomModelConfig, ModelConfig
from src.data.base import Placement
from src.errors import ConfigError
from src.models import build_model, load_pretrained, named_weights
from src.precision import Precision

log = logging.getLogger(__name__)


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


def place_model(model: nn.Module, place: Placement) -> nn.Module:
    """The model on its device, in the memory format of its inputs."""
    model = model.to(place.device)
    return model.to(memory_format=torch.channels_last) if place.channels_last else model


@torch.no_grad()
def try_model(model: nn.Module, images: Tensor, *, precision: Precision, num_classes: int, name: str) -> str:
    """Run the network once and return the dtype that its first convolution or matmul really computed in.

    That dtype is recorded, whatever was asked for. Raises ``ConfigError`` for a network that can't take ``images`` or
    does not return logits [B, num_classes]; an error of the user's own network comes as it is.
    """
    seen: list[torch.dtype] = []
    computing: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    hooks = [module.register_forward_hook(lambda module, args, output: seen.append(output.dtype)) for module in computing or [model]]
    modules, idle = dict(model.named_modules()), set(precision.doors(model))
    hooks += [modules[own].register_forward_pre_hook(lambda *_, own=own: idle.discard(own)) for own in idle]
    model.eval()
    try:
        with precision.autocast():
            logits = model(images)
    except (RuntimeError, ValueError, AssertionError) as error:
        _blame_idle_overrides(idle, error)
        if name == "custom" or isinstance(error, torch.OutOfMemoryError):
            raise
        side = images.shape[-1]
        raise ConfigError(
            f"model={name} can't take images of {side} x {side} pixels ({_first_line(error)}); set another data.image_size"
        ) from error
    finally:
        model.train()
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.shape != (len(images), num_classes):
        got = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ConfigError(
            f"model={name} returns {got} for {len(images)} images; it must return logits [{len(images)}, {num_classes}], a number a class"
        )
    if idle:
        log.warning("precision.overrides: nothing called %s when the network was tried; what uses its weights decides", _listed(idle))
    dtype = seen[0] if seen else logits.dtype  # fused kernels call no layer
    tf32 = dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return "tfloat32" if tf32 else str(dtype).removeprefix("torch.")


def _blame_idle_overrides(idle: set[str], error: Exception) -> None:
    """Raise ``ConfigError`` if the network failed over dtypes, with overrides of modules whose weights another module uses."""
    if idle and "dtype" in str(error):
        raise ConfigError(
            f"precision.overrides: {_listed(idle)} isn't called by itself, another module uses its weights ({_first_line(error)}); "
            "name the module around it"
        ) from error


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def refuse_frozen(model: nn.Module) -> None:
    """Raise ``ConfigError`` for a network that nothing can be trained in."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("model: the network has no parameter that requires a gradient, so there is nothing to train")


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
