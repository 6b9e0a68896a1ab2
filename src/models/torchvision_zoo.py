"""torchvision's classifiers by name: what they need, the network, its published weights."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models as zoo

from src.config.values import show
from src.errors import ConfigError, DataError

_VIT = re.compile(r"vit_[a-z]_(\d+)")
_AUXILIARY = re.compile(r"(AuxLogits|aux1|aux2)\.")
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12])\.")


def image_sizes(arch: str, *, published: bool) -> tuple[int, int]:
    """The smallest side in pixels that runs and the side the network was designed for; ``published``: with its own weights.

    Raises ``ConfigError`` for an unknown name.
    """
    weights = zoo.get_model_weights(_known(arch))
    entries = [weights.DEFAULT] if published else list(weights)
    return min(entry.meta["min_size"][0] for entry in entries), min(entry.transforms.keywords["crop_size"] for entry in entries)


def build(arch: str, *, num_classes: int, image_size: int, kwargs: Mapping[str, Any]) -> nn.Module:
    """The network ``arch``, randomly initialised, for three channels; a vision transformer for images of exactly ``image_size``.

    Raises:
        ConfigError: an unknown name, an image size that patches don't divide, or ``kwargs`` that the network does not take.
    """
    own: dict[str, Any] = {"weights": None, "num_classes": num_classes}
    if vit := _VIT.fullmatch(_known(arch)):
        _refuse_cut_patches(arch, image_size, patch=int(vit[1]))
        own["image_size"] = image_size
    elif arch == "maxvit_t":
        own["input_size"] = (image_size, image_size)
    elif arch in ("googlenet", "inception_v3"):
        own |= {"aux_logits": False, "init_weights": True}  # with auxiliary heads training returns a tuple
    try:
        model: nn.Module = zoo.get_model(arch, **own, **kwargs)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"torchvision's {arch} can't be built for data.image_size={image_size} with model.kwargs={show(kwargs)}: {error}"
        ) from error
    return model


def weights(arch: str) -> dict[str, Tensor]:
    """torchvision's best published weights of ``arch``, for images normalised by ImageNet's mean and standard deviation.

    The file is looked for in ``TORCH_HOME/hub/checkpoints`` and downloaded if it isn't there.

    Raises:
        ConfigError: an unknown name.
        DataError: the file can't be downloaded or read.
    """
    entry = zoo.get_model_weights(_known(arch)).DEFAULT
    file = Path(torch.hub.get_dir()) / "checkpoints" / entry.url.rpartition("/")[2]
    try:
        state = entry.get_state_dict(progress=False, check_hash=True, weights_only=True, map_location="cpu")
    except OSError as error:
        raise DataError(f"model.pretrained=torchvision: {entry.url} can't be downloaded ({error}); put that file at {file}") from error
    except Exception as error:  # whatever a file of other content makes the reader raise
        reason = str(error).partition("\n")[0]
        raise DataError(f"model.pretrained=torchvision: {file} is damaged ({reason}); delete it, or put {entry.url} there") from error
    return {_OLD_DENSENET.sub(r"\1\2.", name): tensor for name, tensor in state.items() if not _AUXILIARY.match(name)}


def _known(arch: str) -> str:
    names = zoo.list_models(module=zoo)
    if arch not in names:
        close = get_close_matches(arch, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "torchvision.models.list_models(module=torchvision.models) lists them"
        raise ConfigError(f"model.arch={arch} is not a classifier of torchvision; {hint}")
    return arch


def _refuse_cut_patches(arch: str, image_size: int, *, patch: int) -> None:
    if image_size % patch:
        lower = image_size - image_size % patch
        fix = f"{lower} or {lower + patch}" if lower else str(patch)
        raise ConfigError(f"data.image_size={image_size} is not a multiple of {patch}, the side of the patches of {arch}; use {fix}")
