"""Everything that can be known wrong about a command line, found before anything is created and before torch is imported."""

import os
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from src.config.schema import OPTIONS
from src.errors import ConfigError, HalfstepError
from src.sweep import inherit
from src.sweep.arguments import read_args
from src.sweep.compose import Composed, Composer, session
from src.sweep.overrides import EXPERIMENT, check_choice, check_new_key, check_twice, check_value, is_choice, is_hydra, parse
from src.sweep.request import App, Request, build


@dataclass(frozen=True)
class Directory:
    """Where the run or sweep goes: ``pattern``, made unique if it is ``generated``, taken as it is otherwise."""

    key: str
    pattern: Path
    generated: bool


@dataclass(frozen=True)
class Plan:
    """A command line that passed: the jobs, the directory, and the overrides that Hydra gets."""

    args: Namespace
    multirun: bool
    jobs: list[Request]
    directory: Directory
    overrides: list[str]
    inherited: list[str]


def preflight(argv: Sequence[str], app: App, *, base: Path | None = None) -> Plan:
    """Compose and check every job of ``argv`` (without the program's name); creates nothing.

    Raises:
        ConfigError: with the option, its value, the rule and the fix.
        CheckpointError: the checkpoint to start from is missing or can't be read.
    """
    args = read_args(argv, app.kind)
    base = base or Path.cwd()
    with session(app.config_name, config_dir=args.config_dir) as composer:
        overrides = read_overrides(args, composer)
        check_twice(overrides)
        if not args.multirun:
            plan = _single(args, overrides, app, composer, base)
            if plan is not None:
                return plan
        return _sweep(args, overrides, app, composer, base)


def read_overrides(args: Namespace, composer: Composer) -> list[Override]:
    """The overrides of ``args``, without ``experiment=null``: that is the default, and Hydra itself refuses null for a group."""
    return [o for o in parse(args.overrides, composer.parser) if not (o.key_or_group == EXPERIMENT and o.value() is None)]


def _single(args: Namespace, overrides: list[Override], app: App, composer: Composer, base: Path) -> Plan | None:
    """The plan of a single run, or None if the config itself asks for a sweep."""
    swept = next((o for o in overrides if o.is_sweep_override()), None)
    if swept is not None:
        if any(o.key_or_group == "hydra.mode" for o in overrides):
            return None
        hint = "" if is_choice(swept) else f", or write {swept.key_or_group}=[{swept.get_value_string()}] for a list"
        raise ConfigError(f"{swept.input_line} has several values: add -m to sweep over them{hint}")
    inherited = _inherited([overrides], app, composer, base)
    composed = compose_checked(overrides, inherited, app, composer)
    if composed.multirun:
        return None
    directory = _directory("hydra.run.dir", composed.run_dir, composed.run_dir_is_timed, overrides, base)
    request = build(composed.node, overrides, app, base=base)
    return Plan(args, False, [request], directory, [*inherited, *_texts(overrides)], inherited)


def _sweep(args: Namespace, overrides: list[Override], app: App, composer: Composer, base: Path) -> Plan:
    fixed = [o for o in overrides if not o.is_sweep_override()]
    own = [o for o in overrides if is_hydra(o)]
    if any(o.is_sweep_override() for o in own):
        raise ConfigError("options of Hydra itself can't be swept; quote a value that holds commas")
    settings = compose_checked([o for o in fixed if is_hydra(o) or is_choice(o)], [], app, composer)
    jobs = _expand([o for o in overrides if not is_hydra(o)], settings, composer)
    inherited = _inherited(jobs, app, composer, base)
    composed = compose_checked(fixed, inherited, app, composer)
    directory = _directory("hydra.sweep.dir", composed.sweep_dir, composed.sweep_dir_is_timed, overrides, base)
    requests = []
    for number, job in enumerate(jobs):
        try:
            composed = compose_checked([*own, *job], inherited, app, composer)
            _refuse_outside(composed.sweep_subdir)
            requests.append(build(composed.node, job, app, base=base))
        except HalfstepError as error:
            raise type(error)(f"job {number} ({' '.join(_texts(job))}): {error}") from error
    return Plan(args, True, requests, directory, [*inherited, *_texts(overrides)], inherited)


def _expand(overrides: Sequence[Override], settings: Composed, composer: Composer) -> list[list[Override]]:
    """The overrides of every job, as Hydra's basic sweeper will split them."""
    params = parse([f"{key}={value}" for key, value in settings.sweep_params.items()], composer.parser)
    try:
        batches = BasicSweeper.split_arguments([*params, *overrides], settings.max_batch_size)
    except HydraException as error:
        raise ConfigError(f"the sweep can't be expanded: {error}; list the values, as in KEY=A,B") from error
    jobs = [parse(job, composer.parser) for batch in batches for job in batch]
    if not jobs:
        raise ConfigError("the sweep has no job: one of its lists of values is empty")
    return jobs


def compose_checked(overrides: Sequence[Override], inherited: Sequence[str], app: App, composer: Composer) -> Composed:
    """Compose ``overrides`` after judging each; Hydra's own complaint is the last resort.

    Raises:
        ConfigError: one of them is wrong.
    """
    for override in filter(is_choice, overrides):
        check_choice(override, groups=app.groups, options=composer.options)
    names = _names([*inherited, *_texts(o for o in overrides if is_choice(o) or is_hydra(o))], composer)
    values = [o for o in overrides if not is_choice(o)]
    for override in values:
        check_value(override, kind=app.kind, names=names)
    try:
        return composer.compose([*inherited, *_texts(overrides)])
    except ConfigError:
        for override in values:
            check_new_key(override, kind=app.kind, names=names)
        raise


def _names(choices: Sequence[str], composer: Composer) -> dict[str, str]:
    """Group -> ``name``; an option file of the user's own may be called anything, so only composing it tells."""
    chosen = composer.choices(choices)
    names = {group: str(chosen[group]) for group in OPTIONS}
    if all(name in OPTIONS[group] for group, name in names.items()):
        return names
    node = composer.compose(choices).node
    return {group: node[group].name for group in OPTIONS}


def _inherited(jobs: Sequence[Sequence[Override]], app: App, composer: Composer, base: Path) -> list[str]:
    """Group choices that all jobs' checkpoints agree on and the user left open, as overrides for Hydra."""
    if not app.inherits:
        return []
    common: Mapping[str, str] | None = None
    for job in jobs:
        reference: Any = next((o.value() for o in reversed(job) if o.key_or_group == "checkpoint"), None)
        uri: Any = next((o.value() for o in reversed(job) if o.key_or_group == "tracking.uri"), None)
        _, saved = inherit.saved_config(None if reference is None else str(reference), base=base, uri=uri)
        names = inherit.saved_options(saved)
        chosen = {*app.own_groups, *(o.key_or_group for o in job if is_choice(o))}
        open_names = {group: name for group, name in names.items() if group not in chosen}
        common = open_names if common is None else dict(common.items() & open_names.items())
    return [f"{group}={name}" for group, name in (common or {}).items()]


def _directory(key: str, value: str, timed: bool, overrides: Sequence[Override], base: Path) -> Directory:
    given = any(o.key_or_group == key for o in overrides)
    if not value:
        raise ConfigError(f"{key} must not be empty")
    # without "..": creating a/../b would leave an empty a
    return Directory(key, Path(os.path.abspath(base / value)), generated=timed and not given)


def _refuse_outside(subdir: str) -> None:
    """A value of an override that is part of it may hold ``../`` too."""
    if os.path.isabs(subdir) or Path(os.path.normpath(subdir)).parts[:1] == ("..",):
        raise ConfigError(f"hydra.sweep.subdir={subdir} leads out of hydra.sweep.dir; use a directory below it")


def _texts(overrides: Iterable[Override]) -> list[str]:
    return [str(override.input_line) for override in overrides]
