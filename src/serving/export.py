"""Writing a saved network for other programs: each file is checked on real images before it gets its name."""

import logging
import os
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from src import build
from src.config.schema import ExportConfig
from src.data.build import example_pixels
from src.errors import CheckpointError, ConfigError, DataError
from src.launch.files import write_json
from src.network import load_model
from src.runtime import logs, rank as ranks
from src.serving.formats import PixelsToLogits, Run, write_onnx, write_pt2, write_safetensors

log = logging.getLogger(__name__)

DESCRIPTION = "model.json"
NUM_IMAGES = 32
REPEATS = 9


@torch.no_grad()
def export(config: ExportConfig, payload: dict[str, Any], *, run_dir: Path) -> dict[str, Any]:
    """Write ``model.FORMAT`` and ``model.json``, which says how to feed them, into ``run_dir``; returns result.json's share.

    Everything is computed in float32 on the CPU. Raises ``CheckpointError`` (exit code 5) for a file whose logits differ by more than
    ``export.tolerance``, and ``ConfigError`` for a network that a format can't hold or a file that would be overwritten.
    """
    paths = {name: run_dir / f"model.{name}" for name in config.export.formats}
    refuse_overwriting([*paths.values(), run_dir / DESCRIPTION])
    ranks.use_threads(1)
    model = PixelsToLogits(load_model(payload, trust_code=config.trust_code), build.input_format(payload)).eval()
    pixels, source = parity_images(config, payload)
    expected = model(pixels)
    about = description(payload)
    example = torch.zeros(2, *pixels.shape[1:], dtype=torch.uint8)  # not of what is compared: a constant taken from it would go unseen
    writers: dict[str, Callable[[Path], Run]] = {
        "onnx": partial(write_onnx, model, example),
        "pt2": partial(write_pt2, model, example),
        "safetensors": partial(write_safetensors, model, about, load_model(payload, trust_code=config.trust_code)),
    }
    eager_ms = milliseconds(model, pixels)
    files = {}
    for name, path in paths.items():
        files[name] = written(path, writers[name], pixels, expected, tolerance=config.export.tolerance)
        log.info("%s: largest difference %.2g on %d images (%s)", path.name, files[name]["max_difference"], len(pixels), source)
    write_json(run_dir / DESCRIPTION, about)
    logs.console.print(table(files, eager_ms=eager_ms, count=len(pixels)))
    return {
        "export": {"files": files, "parity_images": source, "count": len(pixels), "eager_ms": eager_ms, "preprocessing": DESCRIPTION},
        "precision": {"name": "fp32", "dtype": "float32", "scaler": False},
        "world_size": 1,
        "device": ranks.device_name(torch.device("cpu")),
    }


def refuse_overwriting(paths: list[Path]) -> None:
    """Raise ``ConfigError`` for a file of the user's own that a run directory of their choice holds."""
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists; nothing is overwritten: choose another hydra.run.dir, or remove the file")


def parity_images(config: ExportConfig, payload: dict[str, Any]) -> tuple[Tensor, str]:
    """uint8 [N, C, S, S] of the checkpoint's data and the split's name; noise, and that word, where the data can't be reached."""
    channels, size = payload["data"]["pixel_channels"], payload["data"]["pixel_size"]
    try:
        images = example_pixels(config.data, split=config.split, count=NUM_IMAGES, size=size, class_names=payload["class_names"])
    except (ConfigError, DataError) as error:
        log.warning("the files are checked on noise, since the images can't be reached: %s", error)
        shape = (NUM_IMAGES, channels, size, size)
        return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)), "noise"
    if tuple(images.shape[1:]) not in {(1, size, size), (channels, size, size)}:
        raise ConfigError(
            f"data.name={config.data.name} has images of {list(images.shape[1:])} (channels, height, width) but the network was trained on "
            f"{[channels, size, size]}; leave data away"
        )
    return images.expand(-1, channels, -1, -1).contiguous(), f"{config.data.name} {config.split.name}"


def written(path: Path, write: Callable[[Path], Run], pixels: Tensor, expected: Tensor, *, tolerance: float) -> dict[str, Any]:
    """Write under a temporary name, compare for the whole batch and for one image, then give the file its name."""
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        run, found = _tried(path.suffix[1:], lambda: write(temporary), pixels)
        wanted = torch.cat([expected, expected[:1]])
        difference = float((found - wanted).abs().max())  # NaN if there is one
        if not difference <= tolerance:
            raise CheckpointError(
                f"{path.name} computes other logits than the checkpoint: the largest difference is {difference:.3g}, "
                f"export.tolerance={tolerance:g}; the file was not kept"
            )
        ms = milliseconds(run, pixels)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    same = bool((found.argmax(dim=1) == wanted.argmax(dim=1)).all())
    return {"path": path.name, "bytes": path.stat().st_size, "max_difference": difference, "same_classes": same, "ms": ms}


def _tried(name: str, write: Callable[[], Run], pixels: Tensor) -> tuple[Run, Tensor]:
    """What a written file computes, and that for ``pixels`` and, in a last row, for the first of them alone.

    Raises ``ConfigError`` whatever goes wrong: exporters, and what reads their files, raise about anything.
    """
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # they tell of their own affairs at length
        warnings.simplefilter("ignore")
        try:
            run = write()
            together, alone = run(pixels), run(pixels[:1])
            if (len(together), len(alone)) != (len(pixels), 1):
                raise ValueError("it takes one number of images only")
        except Exception as error:
            raise ConfigError(f"export.formats: the network can't be written as {name} ({_reason(error)}); leave {name} out") from error
    return run, torch.cat([together, alone])


def _reason(error: BaseException) -> str:
    """The first line of the cause of all."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0].strip() or type(error).__name__


def description(payload: dict[str, Any]) -> dict[str, Any]:
    """What somebody needs to feed the files, from an image file on (``data/decode.py`` in Pillow's words).

    The rest of the preprocessing is inside them, but not in safetensors, which are weights alone.
    """
    data = payload["data"]
    size, channels = data["pixel_size"], data["pixel_channels"]
    return {
        "input": f"pixels: uint8 [N, {channels}, {size}, {size}], {'RGB' if channels == 3 else 'grey (ITU-R 601 luma)'}, 0 to 255",
        "from_file": [
            "ImageOps.exif_transpose(image)",
            "to RGB: transparency laid on white (Image.alpha_composite), 16-bit grey as (value + 128) // 257, all else by convert('RGB')",
            f"ImageOps.fit(image, ({size}, {size}), method=Image.Resampling.BILINEAR) unless it has that size",
            *(["convert('L')"] if channels == 1 else []),
        ],
        "output": f"logits: float32 [N, {data['num_classes']}]; softmax gives probabilities",
        "class_names": payload["class_names"],
        "inside": {
            "mean": data["mean"],
            "std": data["std"],
            "of": "pixels / 255",
            "channels": data["channels"],
            "image_size": data["image_size"],
            "resize": "bilinear, corners not aligned, antialiased where it makes smaller",
        },
        "model": payload["config"]["model"],
        "step": payload["state"]["step"],
    }


def milliseconds(run: Run, pixels: Tensor) -> float:
    """The median time of a batch, after one to warm up."""
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        run(pixels)
        times.append(1000 * (perf_counter() - began))
    return median(times[1:])


def table(files: dict[str, dict[str, Any]], *, eager_ms: float, count: int) -> Table:
    """What was written, how exact it is and how fast with a batch of ``count`` images."""
    shown = Table(box=None, pad_edge=False)
    for column in ("file", "MiB", "largest difference", "same classes", f"ms for {count} images"):
        shown.add_column(column, justify="left" if column == "file" else "right")
    shown.add_row("(eager, float32, CPU)", "", "", "", f"{eager_ms:.1f}")
    for found in files.values():
        cells = (f"{found['bytes'] / 2**20:.1f}", f"{found['max_difference']:.1e}", "yes" if found["same_classes"] else "NO")
        shown.add_row(found["path"], *cells, f"{found['ms']:.1f}")
    return shown
