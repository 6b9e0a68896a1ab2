"""From a composed node to the checked, typed config of one job; the pre-flight and the job itself go the same way."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from src.checkpoint import manifest
from src.checkpoint.drift import drift
from src.config.check_saved import refuse_existing
from src.config.checks import check
from src.config.resolve import WEIGHTS_BY_NAME, absolute_paths, with_defaults
from src.config.runfile import flatten, plain, to_config, to_dict
from src.config.schema import OPTIONS, Config, ExportConfig, PredictConfig
from src.errors import ConfigError
from src.launch import adopt
from src.launch.locate import locate, store_uri
from src.sweep import inherit
from src.sweep.overrides import EXPERIMENT, is_choice, is_hydra, value_keys
from src.sweep.saved import refuse_damaged, refuse_foreign


@dataclass(frozen=True)
class App:
    """An entry point: its primary config, that config's dataclass, and whether it starts from a checkpoint's config."""

    config_name: str
    kind: type[Config] = Config
    inherits: bool = False

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of the command line; an experiment describes a training run, so a checkpoint's config leaves no room for one."""
        return tuple(OPTIONS) if self.inherits else (*OPTIONS, EXPERIMENT)

    @property
    def own_groups(self) -> tuple[str, ...]:
        """Groups never taken from a checkpoint: who keeps a run is its own affair, and an export is the work of one process."""
        return ("tracking", "parallel") if self.kind is ExportConfig else ("tracking",)


@dataclass(frozen=True)
class Request:
    """What one job is asked to do: its typed config, the user's overrides, and how it departs from the checkpoint's config."""

    config: Config
    overrides: list[str]
    differences: list[inherit.Difference]


def build(node: DictConfig, overrides: Sequence[Override], app: App, *, base: Path) -> Request:
    """The checked request of one composed job; ``overrides`` are the user's own, without inherited choices."""
    data, differences = plain(node), []
    if app.inherits:
        path, saved = inherit.saved_config(data["checkpoint"], base=base, uri=data["tracking"]["uri"])
        _refuse_model(overrides)
        chosen = [*app.own_groups, *(o.key_or_group for o in overrides if is_choice(o))]
        keys = [key for o in overrides if not is_choice(o) and not is_hydra(o) for key in value_keys(o)]
        data = inherit.merge(saved, data | {"checkpoint": str(path)}, groups=chosen, keys=keys)
        differences = inherit.differences(flatten(to_config(saved)), flatten(to_config(data, app.kind)))
    config = with_defaults(absolute_paths(to_config(data, app.kind), base))
    if config.resume not in (None, "auto"):
        # A missing or damaged checkpoint is found out now, not in a run directory of its own.
        start = locate(config.resume, best=False, uri=config.tracking.uri)
        refuse_damaged(start)
        config = replace(config, resume=str(start))
        drift(start, manifest.read_config(start), to_dict(config))
    if config.model.pretrained not in (None, "", *WEIGHTS_BY_NAME) and not app.inherits:
        weights = locate(str(config.model.pretrained), best=True, uri=config.tracking.uri)
        refuse_foreign(weights)
        config = replace(config, model=replace(config.model, pretrained=str(weights)))
    if isinstance(config, PredictConfig) and (found := Path(config.predict.output)).is_absolute():
        refuse_existing(found)
    check(adopt.as_started(config), cuda_devices=adopt.num_cuda_devices())
    if config.tracking.name == "mlflow":
        store_uri(config.tracking.uri)  # refuses an address that no store has
    return Request(config, [str(o.input_line) for o in overrides if not is_hydra(o)], differences)


def _refuse_model(overrides: Sequence[Override]) -> None:
    for override in overrides:
        if override.key_or_group.partition(".")[0] == "model":
            raise ConfigError(f"{override.input_line}: the network is the checkpoint's and can't be changed; leave it out")
