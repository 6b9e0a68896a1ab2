"""Rules of the commands that start from a saved model: evaluate, predict, export."""

from src.config.schema import CheckpointConfig, CustomDataConfig, CustomModelConfig, ExportConfig, PredictConfig
from src.config.values import show
from src.errors import ConfigError

EXPORT_FORMATS = ("onnx", "pt2", "safetensors")


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
    if not wanted.input:
        raise ConfigError("predict.input is not set; give a folder, a glob pattern, an image or a .txt file with an image a line")
    if not wanted.output.endswith((".csv", ".jsonl")):
        raise ConfigError(f"predict.output={wanted.output} must end in .csv or .jsonl")


def _export(config: ExportConfig) -> None:
    if not config.export.formats or not set(config.export.formats) <= set(EXPORT_FORMATS):
        raise ConfigError(f"export.formats={show(config.export.formats)} must be some of {', '.join(EXPORT_FORMATS)}")
    if config.parallel.name != "single":
        raise ConfigError(f"parallel={config.parallel.name}: an export is the work of one process; leave parallel away")


def _trust(config: CheckpointConfig) -> None:
    if config.trust_code:
        return
    for group, section in (("model", config.model), ("data", config.data)):
        if isinstance(section, CustomModelConfig | CustomDataConfig):
            raise ConfigError(f"{group}.factory={section.factory} is code that the checkpoint names; add trust_code=true to let it run")
