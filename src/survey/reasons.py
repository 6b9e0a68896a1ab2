"""Why a precision mode helps a network or can't, in sentences; every number in them was measured or counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from src.survey.coverage import HALF, Coverage
from src.survey.formats import GAIN, support

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
MULTIPLE = 8
"""Tensor cores take half matrices in tiles; NVIDIA's guide asks for dimensions that this divides."""
SHOWN = 6
SMALL_SHARE = 0.2
NORM_SHARE = 0.25


@dataclass(frozen=True)
class Timing:
    """A training step of ``images`` images in float32 and in the mode: mean seconds, and the number of steps behind each."""

    images: int
    full_seconds: float
    full_steps: int
    mode_seconds: float
    mode_steps: int

    @property
    def gain(self) -> float:
        """How many times as fast the mode is."""
        return self.full_seconds / self.mode_seconds

    def sentence(self, name: str) -> str:
        """Both times, and what the mode ``name`` gains."""
        full = f"{_ms(self.full_seconds)} with fp32 ({_steps(self.full_steps)})"
        mode = f"{_ms(self.mode_seconds)} with {name} ({_steps(self.mode_steps)})"
        return f"A step of {self.images} images takes {full} and {mode}, without data: {self.gain:.2f} times as fast."


def reasons(
    name: str,
    coverage: Coverage,
    model: nn.Module,
    timing: Timing | None,
    *,
    speeds: Mapping[str, float],
    device: torch.device,
    images: int,
) -> list[str]:
    """What the mode ``name`` does for ``model`` on ``device``, and what stands in its way.

    ``images`` is the batch of ``coverage``; ``speeds`` are FLOP/s of a matmul by number format; ``timing`` is None if none could be taken.
    """
    formats = [found for found in coverage.formats() if found != "float32"]
    if not formats:
        why = f": {support('tf32', device).why}" if name == "tf32" else ""
        return [f"precision={name} computes every matmul and convolution in float32 here{why}."]
    main = formats[0]
    found = [] if timing is None else [timing.sentence(name)]
    hardware = support(main, device)
    if not hardware.native:
        found.append(f"The hardware is the limit: {hardware.why}.")
    elif timing is not None and main in speeds:
        found += _size(coverage, timing, speed=speeds[main], main=main, images=images)
    left = [kind.module for kind in coverage.flops if kind.number_format == "float32"]
    if left:
        share = 1 - _both(coverage, formats)
        found.append(f"{share:.0%} of the FLOPs stay in float32: {_names(left)}.")
    if device.type == "cuda" and main in HALF:
        found += _shapes(coverage, model, main)
    found += _casts(coverage, model)
    return found


def _size(coverage: Coverage, timing: Timing, *, speed: float, main: str, images: int) -> list[str]:
    flops = sum(coverage.flops.values()) * timing.images / images
    share = flops / speed / timing.mode_seconds
    text = (
        f"Its {flops / 1e9:.3g} GFLOP would take {_ms(flops / speed)} at the speed of a {main} matmul here "
        f"({speed / 1e9:,.3g} GFLOP/s), {share:.0%} of the step"
    )
    if share >= SMALL_SHARE or timing.gain >= GAIN:
        return [text + "."]
    each = flops / coverage.kernels
    return [
        text + f": the rest is launches, memory traffic and small kernels ({each / 1e6:.3g} MFLOP each), which no precision makes faster. "
        "A larger train.batch_size or data.image_size gives more work a kernel."
    ]


def _shapes(coverage: Coverage, model: nn.Module, main: str) -> list[str]:
    half = {kind.module for kind in coverage.flops if kind.number_format == main}
    odd = [f"{name} ({sizes})" for name, sizes in odd_sizes(model).items() if name in half]
    if not odd:
        return []
    return [f"Tensor cores want sizes that {MULTIPLE} divides, and these have others: {_names(odd)}."]


def odd_sizes(model: nn.Module) -> dict[str, str]:
    """Linear layers and convolutions of which a size is no multiple of 8: name -> inputs x outputs, those of one group if grouped."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            sizes = (module.in_features, module.out_features)
        elif isinstance(module, _ConvNd):
            sizes = (module.in_channels // module.groups, module.out_channels // module.groups)
        else:
            continue
        if any(size % MULTIPLE for size in sizes):
            found[name] = f"{sizes[0]} x {sizes[1]}"
    return found


def _casts(coverage: Coverage, model: nn.Module) -> list[str]:
    modules = dict(model.named_modules())
    total = sum(coverage.casts.values())
    around = [name for name in coverage.casts if isinstance(modules.get(name), NORMS)]
    count = sum(coverage.casts[name] for name in around)
    if count < NORM_SHARE * max(1, total):
        return []
    kinds = ", ".join(sorted({type(modules[name]).__name__ for name in around}))
    return [f"{count} of the {total} casts are around norms that stay in float32 ({len(around)}: {kinds}); each reads and writes memory."]


def _both(coverage: Coverage, formats: Sequence[str]) -> float:
    done = sum(flops for kind, flops in coverage.flops.items() if kind.number_format in formats)
    return done / sum(coverage.flops.values())


def _names(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(name or "the network itself" for name in names))
    more = f" and {len(unique) - SHOWN} more" if len(unique) > SHOWN else ""
    return ", ".join(unique[:SHOWN]) + more


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _steps(count: int) -> str:
    return f"mean of {count} steps" if count > 1 else "one step"
