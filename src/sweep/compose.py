"""Hydra's composition as a library call: no directory, no logging, and errors in words of the user's command line."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from hydra import compose as hydra_compose, version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from src.config.docs import CONF_DIR
from src.config.keys import unknown_option
from src.config.store import VERSION_BASE, register
from src.errors import ConfigError


@dataclass(frozen=True)
class Composed:
    """One composition: the application's node and what Hydra's own section says about directories and sweeps."""

    node: DictConfig
    multirun: bool
    run_dir: str
    run_dir_is_timed: bool
    sweep_dir: str
    sweep_dir_is_timed: bool
    sweep_subdir: str
    """Directory of a job below ``sweep_dir``, for number 0."""
    sweep_params: Mapping[str, str]
    max_batch_size: int | None


@contextmanager
def session(config_name: str, *, config_dir: str | None = None) -> Iterator["Composer"]:
    """Hydra initialised on ``conf/`` (and the user's ``--config-dir`` before it), and cleared afterwards."""
    register()
    version.setbase(VERSION_BASE)
    path = create_config_search_path(str(CONF_DIR))
    if config_dir is not None:
        if not os.path.isdir(config_dir):
            raise ConfigError(f"--config-dir {config_dir} is not a directory")
        path.prepend(provider="command-line", path=f"file://{os.path.abspath(config_dir)}", anchor=SearchPathQuery(provider="schema"))
    Hydra.create_main_hydra2(task_name=config_name, config_search_path=path)
    try:
        yield Composer(config_name)
    finally:
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = None


class Composer:
    """Composes overrides inside a ``session``."""

    def __init__(self, config_name: str) -> None:
        self.config_name = config_name
        self.loader = GlobalHydra.instance().config_loader()
        self.parser = OverridesParser.create(config_loader=self.loader)
        self._choices: dict[tuple[str, ...], dict[str, str | None]] = {}

    def options(self, group: str) -> list[str]:
        """The options of ``group`` that Hydra finds on its search path."""
        return list(self.loader.get_group_options(group))

    def choices(self, overrides: Sequence[str]) -> dict[str, str | None]:
        """Group -> option that ``overrides`` lead to, by way of an experiment or not; a third of the cost of composing.

        Raises:
            ConfigError: Hydra or OmegaConf refuses them.
        """
        key = tuple(overrides)
        if key not in self._choices:  # the jobs of a sweep mostly share them
            with _in_words():
                defaults: Any = self.loader.compute_defaults_list(self.config_name, list(overrides), RunMode.RUN)
                self._choices[key] = dict(defaults.overrides.known_choices)
        return self._choices[key]

    def compose(self, overrides: Sequence[str]) -> Composed:
        """The config that ``overrides`` give.

        Raises:
            ConfigError: Hydra or OmegaConf refuses them.
        """
        with _in_words():
            return _split(hydra_compose(self.config_name, list(overrides), return_hydra_config=True))


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(describe(error)) from error
    except (ValueError, TypeError, AssertionError, AttributeError) as error:
        # Hydra lets builtin exceptions through for some wrong values; here all of them are the user's to fix.
        raise ConfigError(f"these overrides can't be composed: {describe(error)}") from error


def _split(config: DictConfig) -> Composed:
    with open_dict(config):
        config.hydra.job.num, config.hydra.job.id = 0, "0"
    HydraConfig.instance().set_config(config)  # for ${hydra:...} inside directories
    raw: Any = OmegaConf.to_container(config.hydra, resolve=False)
    hydra = config.hydra
    composed = Composed(
        node=config,
        multirun=hydra.mode == RunMode.MULTIRUN,
        run_dir=str(hydra.run.dir),
        run_dir_is_timed="${now:" in raw["run"]["dir"],
        sweep_dir=str(hydra.sweep.dir),
        sweep_dir_is_timed="${now:" in raw["sweep"]["dir"],
        sweep_subdir=str(hydra.sweep.subdir),
        sweep_params=dict(hydra.sweeper.get("params") or {}),
        max_batch_size=hydra.sweeper.get("max_batch_size"),
    )
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        del config["hydra"]
    return composed


def describe(error: BaseException) -> str:
    """One or two lines for an error of Hydra or OmegaConf, without their file lists and links."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and "/" in error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return unknown_option(group, name, list(error.options or ()))
    where = re.match(r"In '([^']+)'", str(error))
    prefix = f"in {where[1]}.yaml: " if where else ""
    inner = _omegaconf_error(error)
    if inner is not None:
        if str(inner.full_key).startswith("hydra.") and isinstance(inner, ConfigKeyError | ConfigAttributeError):
            return f"{prefix}{inner.full_key} is not an option of Hydra; {_nearest(inner)}"
        key = f"{inner.full_key}: " if inner.full_key else ""
        return f"{prefix}{key}{str(inner).splitlines()[0]}"
    lines = [line.strip() for line in re.split(r"\nConfig search path|\nSee https?:", str(error))[0].splitlines() if line.strip()]
    return " ".join(lines) or f"the configuration can't be composed ({type(error).__name__})"


def _nearest(error: OmegaConfBaseException) -> str:
    parent, key = str(error.full_key).rpartition(".")[::2]
    siblings = [str(name) for name in error.parent_node or ()]
    close = get_close_matches(key, siblings, n=1)
    return f"did you mean {parent}.{close[0]}?" if close else "--cfg hydra lists them all"


def _omegaconf_error(error: BaseException) -> OmegaConfBaseException | None:
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OmegaConfBaseException) and str(chain):
            return chain
        chain = chain.__cause__ or chain.__context__
    return None
