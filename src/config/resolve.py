"""What a config means on this command line: relative paths made absolute, the run's name filled in."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from src.config.schema import JOBS, CheckpointConfig, Config, DownloadedConfig, ImageFolderConfig, PredictConfig

ConfigT = TypeVar("ConfigT", bound=Config)

RUN_ID = re.compile(r"[0-9a-f]{32}")
WEIGHTS_BY_NAME = ("torchvision", "timm")
"""What ``model.pretrained`` may be instead of a path."""
SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


def with_defaults(config: ConfigT) -> ConfigT:
    """``config`` with its name, model-data-precision-parallel unless the user gave one, and cut down if it is a dry run."""
    if config.name is None:
        arch = re.sub(r"[^\w.-]", "_", getattr(config.model, "arch", config.model.name))
        kind = [job for job, own in JOBS.items() if own is type(config) and job != "train"]
        config = replace(config, name="-".join((*kind, arch, config.data.name, config.precision.name, config.parallel.name)))
    return shortened(config) if config.dry_run else config


def shortened(config: ConfigT) -> ConfigT:
    """Two steps of everything: two optimizer steps on as many images, and an evaluation of no more."""
    train, data = config.train, config.data
    images = 2 * train.batch_size
    return replace(
        config,
        train=replace(train, epochs=1, max_steps=2, log_every=1),
        data=replace(data, subset=min(images, data.subset or images)),
    )


def absolute_paths(config: ConfigT, base: Path) -> ConfigT:
    """``config`` with the user's relative paths taken from ``base``, the directory where the command was typed.

    Left as they are: null, ``resume=auto``, MLflow run ids (32 hex digits) and URIs with a scheme.
    """
    if isinstance(config.data, ImageFolderConfig | DownloadedConfig):
        config = replace(config, data=replace(config.data, root=_absolute(config.data.root, base)))
    if config.model.pretrained not in WEIGHTS_BY_NAME:
        config = replace(config, model=replace(config.model, pretrained=absolute_reference(config.model.pretrained, base)))
    uri = config.tracking.uri
    if uri is not None and not SCHEME.match(uri):
        config = replace(config, tracking=replace(config.tracking, uri=_absolute(uri, base)))
    if config.resume != "auto":
        config = replace(config, resume=absolute_reference(config.resume, base))
    if isinstance(config, CheckpointConfig):
        config = replace(config, checkpoint=absolute_reference(config.checkpoint, base))
    if isinstance(config, PredictConfig):
        wanted = config.predict
        output = wanted.output if Path(wanted.output).name == wanted.output else str(_absolute(wanted.output, base))
        config = replace(config, predict=replace(wanted, input=_absolute(wanted.input, base), output=output))
    return config


def absolute_reference(text: str | None, base: Path) -> str | None:
    """A checkpoint's path made absolute; a run id stays."""
    return text if text is not None and RUN_ID.fullmatch(text) else _absolute(text, base)


def _absolute(text: str | None, base: Path) -> str | None:
    # An empty path would silently become the current directory; the checks refuse it instead.
    return os.path.abspath(base / os.path.expanduser(text)) if text else text
