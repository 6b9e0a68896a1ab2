"""Another dtype for some modules: ``precision.overrides=['classifier.*=float32','layer4*=bfloat16']``."""

from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from src.errors import ConfigError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Override:
    """A shell pattern on module names (``*``, ``?``, ``[12]``) and the dtype of the modules that match."""

    pattern: str
    dtype: torch.dtype


def parse_overrides(texts: list[str]) -> list[Override]:
    """``PATTERN=DTYPE`` texts, checked with the configuration."""
    pairs = (text.rpartition("=") for text in texts)
    return [Override(pattern, DTYPES[dtype]) for pattern, _, dtype in pairs]


def choose(model: nn.Module, overrides: list[Override]) -> dict[str, torch.dtype]:
    """The dtype of each module that a pattern names; of several patterns the last counts.

    Raises ``ConfigError`` for a pattern without a match, with the nearest names.
    """
    names = [name for name, _ in model.named_modules() if name]
    chosen: dict[str, torch.dtype] = {}
    for override in overrides:
        matches = [name for name in names if fnmatchcase(name, override.pattern)]
        if not matches:
            near = get_close_matches(override.pattern.rstrip(".*"), names, n=5, cutoff=0.3) or names[:5]
            raise ConfigError(
                f"precision.overrides: no module of the network matches {override.pattern!r}; the nearest names are {', '.join(near)}"
            )
        chosen |= dict.fromkeys(matches, override.dtype)
    return chosen


def doors(chosen: dict[str, torch.dtype], *, outside: torch.dtype) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """Module -> its dtype and another one around it: where something must be cast. ``outside`` is the dtype of the network."""
    around = {name: dtype_at(name.rpartition(".")[0], chosen, outside=outside) for name in chosen}
    return {name: (dtype, around[name]) for name, dtype in chosen.items() if dtype != around[name]}


def dtype_at(name: str, chosen: dict[str, torch.dtype], *, outside: torch.dtype) -> torch.dtype:
    """The dtype chosen for a module or for the nearest one around it; ``outside`` if there is none."""
    while name:
        if name in chosen:
            return chosen[name]
        name = name.rpartition(".")[0]
    return outside


def cast_calls(module: nn.Module, *, inputs: torch.dtype, outputs: torch.dtype) -> None:
    """Cast the floating-point tensors that go into ``module`` and come out of it."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = cast(args, inputs), cast(kwargs, inputs)
        return cast(type(self).forward(self, *args, **kwargs), outputs)

    # A bound method, so that a deep copy of the module is bound to the copy.
    module.forward = MethodType(forward, module)


def autocast_calls(module: nn.Module, *, dtype: torch.dtype, around: torch.dtype, device_type: str) -> None:
    """Run ``module``, whose weights are float32, under an autocast region of its own; float32 means none, on float32 inputs.

    Where it is float32 ``around``, nothing there would cast its outputs.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        full = dtype == torch.float32
        with torch.autocast(device_type, enabled=not full, dtype=torch.bfloat16 if full else dtype):
            if full:
                args, kwargs = cast(args, dtype), cast(kwargs, dtype)
            outputs = type(self).forward(self, *args, **kwargs)
        return cast(outputs, around) if around == torch.float32 else outputs

    module.forward = MethodType(forward, module)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The same nest of tuples, lists and dicts with every floating-point tensor in ``dtype``."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: cast(item, dtype) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(cast(item, dtype) for item in value)
    return value
