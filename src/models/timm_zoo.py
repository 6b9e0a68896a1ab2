"""timm's classifiers by name: what they need, the network, its published weights. timm is optional."""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from src.config.values import show
from src.errors import ConfigError, DataError


def image_sizes(arch: str, *, published: bool) -> tuple[int, int]:
    """The smallest side in pixels and the side the network was designed for; ``published``: with its own weights.

    Published position embeddings fit one size; otherwise only running the network tells. Raises ``ConfigError`` for an unknown name.
    """
    config = _described(_library(), arch)
    size = config.input_size[-1]
    return (size if published and config.fixed_input_size else 1), size


def build(arch: str, *, num_classes: int, channels: int, image_size: int, kwargs: Mapping[str, Any]) -> nn.Module:
    """The network ``arch``, randomly initialised.

    Raises:
        ConfigError: timm is not installed, an unknown name, or ``kwargs`` that the network does not take.
    """
    timm = _library()
    own: dict[str, Any] = {"pretrained": False, "checkpoint_path": None, "num_classes": num_classes, "in_chans": channels}
    if _described(timm, arch).fixed_input_size:
        own["img_size"] = image_size
    try:
        model: nn.Module = timm.create_model(arch, **own, **kwargs)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(
            f"timm's {arch} can't be built for data.image_size={image_size} with model.kwargs={show(kwargs)}: {error}"
        ) from error
    return model


def weights(arch: str, *, kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """timm's published weights of ``arch``, from the Hugging Face cache or downloaded.

    Raises:
        ConfigError: timm is not installed, an unknown name, or a network without published weights.
        DataError: the file can't be downloaded or read.
    """
    timm = _library()
    config = _described(timm, arch)
    if not config.has_weights:
        raise ConfigError(f"model.pretrained=timm: timm has no weights of model.arch={arch}; timm.list_pretrained() lists what it has")
    try:
        model: nn.Module = timm.create_model(arch, pretrained=True, **kwargs)
    except Exception as error:  # the Hub's client has errors of its own, and so has a file of other content
        url = f"https://huggingface.co/{config.hf_hub_id}/resolve/main/model.safetensors" if config.hf_hub_id else config.url
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"model.pretrained=timm: the weights of {arch} can't be had ({reason}); download {url} and set model.pretrained to that file, "
            "or set HF_HOME to a Hugging Face cache that has them"
        ) from error
    return model.state_dict()


def _library() -> Any:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise ConfigError("model=timm needs the package timm, which is not installed; pip install -e '.[models]'") from None


def _described(timm: Any, arch: str) -> Any:
    """timm's ``PretrainedCfg`` of a name that it knows."""
    try:
        return timm.get_pretrained_cfg(arch, allow_unregistered=False)
    except RuntimeError:
        names = timm.list_pretrained() if "." in arch else timm.list_models()  # with tag, as in resnet18.a1_in1k, or without
        close = get_close_matches(arch, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "timm.list_models() lists them"
        raise ConfigError(f"model.arch={arch} is not a network of timm; {hint}") from None
