"""Rules of the commands that start from a saved model: evaluate, predict, export."""

import os
from importlib.util import find_spec
from pathlib import Path

from src.config.schema import CheckpointConfig, CustomDataConfig, CustomModelConfig, ExportConfig, ImageFolderConfig, PredictConfig
from src.config.values import show
from src.errors import ConfigError

EXPORT_FORMATS: dict[str, tuple[str, ...]] = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": (), "safetensors": ()}
"""Format -> packages beyond those that training needs."""
_RUNS_OWN = ("metrics.jsonl", "system.jsonl")
_NAME_BYTES = 255


def check_saved(config: CheckpointConfig) -> None:
    """Raise ``ConfigError``, which names the option, its value, the rule and the fix."""
    _trust(config)
    if config.resume is not None:
        raise ConfigError(f"resume={show(config.resume)} has no meaning here; name the model by checkpoint=PATH")
    if isinstance(config, PredictConfig):
        _predict(config)
    if isinstance(config, ExportConfig):
        _export(config)


def _predict(config: PredictConfig) -> None:
    wanted = config.predict
    if not wanted.input and not isinstance(config.data, ImageFolderConfig):
        raise ConfigError("predict.input is not set; give a folder, a glob pattern, an image or a .txt file with an image a line")
    output = Path(wanted.output)
    if output.suffix not in (".csv", ".jsonl"):
        raise ConfigError(f"predict.output={wanted.output} must end in .csv or .jsonl, after a name")
    if wanted.output in _RUNS_OWN:
        raise ConfigError(f"predict.output={wanted.output} is a file of the run directory's own; give another name")
    if len(os.fsencode(output.name)) > _NAME_BYTES:
        raise ConfigError(f"predict.output={wanted.output} has a longer name than the {_NAME_BYTES} bytes that a file may have; shorten it")


def _export(config: ExportConfig) -> None:
    if not config.export.formats or not set(config.export.formats) <= set(EXPORT_FORMATS):
        raise ConfigError(f"export.formats={show(config.export.formats)} must be some of {', '.join(EXPORT_FORMATS)}")
    for name in config.export.formats:
        if missing := [package for package in EXPORT_FORMATS[name] if find_spec(package) is None]:
            raise ConfigError(
                f"export.formats={show(config.export.formats)}: {name} needs {', '.join(missing)}; pip install -e '.[export]', "
                f"or leave {name} out"
            )
    if config.parallel.name != "single":
        raise ConfigError(f"parallel={config.parallel.name}: an export is the work of one process; leave parallel away")


def refuse_existing(path: Path) -> None:
    """Raise ``ConfigError`` if the file of predictions exists already or has no folder that it can be written to."""
    if os.path.lexists(path):
        raise ConfigError(f"predict.output={path} exists; nothing is overwritten: give another name, or remove it")
    if not path.parent.is_dir():
        raise ConfigError(f"predict.output={path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"predict.output={path}: {path.parent} can't be written to; give another folder")


def _trust(config: CheckpointConfig) -> None:
    if config.trust_code:
        return
    for group, section in (("model", config.model), ("data", config.data)):
        if group == "data" and isinstance(config, PredictConfig):
            continue  # its images come from files
        if isinstance(section, CustomModelConfig | CustomDataConfig):
            raise ConfigError(f"{group}.factory={section.factory} is code that the checkpoint names; add trust_code=true to let it run")
