"""The way of every entry point: pre-flight, claim of the directory, then Hydra runs the job or the sweep."""

import logging
import math
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from src.config.docs import CONF_DIR
from src.config.schema import Config, EvaluateConfig
from src.config.store import VERSION_BASE, register
from src.config.values import show
from src.errors import ConfigError, ExitCode, HalfstepError
from src.launch import adopt
from src.launch.result import JobResult
from src.sweep.arguments import read_args
from src.sweep.complete import complete
from src.sweep.directory import Claim, claim_given, claim_new, slug
from src.sweep.elsewhere import read_results
from src.sweep.help import show_help
from src.sweep.inherit import Difference
from src.sweep.overrides import parse, quote
from src.sweep.preflight import Plan, preflight
from src.sweep.request import App, Request, build

log = logging.getLogger(__name__)

MAX_ERROR_LINES = 10
STOPS = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)


@dataclass(frozen=True)
class Job:
    """One job for an entry point's task."""

    config: Config
    run_dir: Path
    overrides: list[str]
    differences: list[Difference]


Task = Callable[[Job], JobResult]


class _SweepStopped(BaseException):
    """Ends Hydra's sweep at once: a plain Exception would be noted as one failed job and the next one started."""


def run_app(task: Task, *, config_name: str, kind: type[Config] = Config, inherits: bool = False) -> int:
    """Run the command line of this process and return its exit code; under an outer torchrun rank 0 does it for all ranks.

    Args:
        task: does one job and tells how it ended; it raises nothing that a user can cause.
        config_name: primary config in ``conf/``.
        kind: dataclass of that config.
        inherits: take the config of ``checkpoint`` and put the command line on top.
    """
    return adopt.together(lambda: _run_command(task, App(config_name, kind, inherits), sys.argv[1:]))


def _run_command(task: Task, app: App, argv: Sequence[str]) -> int:
    try:
        args = read_args(argv, app.kind)
        if (code := _tell(args, app, argv, task=task)) is not None:
            return code
        plan = preflight(argv, app)
        if args.cfg:
            return _call_hydra(lambda node: None, app, [*plan.overrides, *_flags(args)])
        if plan.multirun:
            adopt.refuse_sweep()
        claim = claim_directory(plan)
    except HalfstepError as error:
        _report(str(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    if plan.multirun and len(plan.jobs) == 1:
        sys.stderr.write("note: -m runs a single job, since no key has several values, as in optim.lr=1e-3,1e-2\n")
    with claim:
        return _run(task, app, plan, claim)


def launch(job: Job) -> JobResult:
    """Run one job of whatever kind; how it departs from its checkpoint's config is said at its start."""
    from src.launch import job as launcher  # late: the pre-flight must not pay for what a run needs

    notes = [f"{d.key}: {show(d.saved)} in the checkpoint, {show(d.used)} here" for d in job.differences]
    return launcher.run_job(job.config, run_dir=job.run_dir, overrides=job.overrides, notes=notes)


def run_plain(task: Callable[[Any, list[str]], int], *, config_name: str, kind: type[Config]) -> int:
    """A command that leaves no run directory: the pre-flight, then ``task`` for each job; returns the first bad exit code.

    ``task`` gets the job's config, and the words that lead to it on the command line of another entry point too. It may raise a
    ``HalfstepError``.
    """
    app, argv = App(config_name, kind), sys.argv[1:]
    try:
        args = read_args(argv, kind)
        if (code := _tell(args, app, argv, task=task)) is not None:
            return code
        plan = preflight(argv, app)
        if args.cfg:
            return _call_hydra(lambda node: None, app, [*plan.overrides, *_flags(args)])
        own_options = [] if args.config_dir is None else ["--config-dir", args.config_dir]
        codes = [task(job.config, [*job.overrides, *own_options]) for job in plan.jobs]
    except HalfstepError as error:
        _report(str(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return next((code for code in codes if code), int(ExitCode.OK))


def _tell(args: Namespace, app: App, argv: Sequence[str], *, task: Callable[..., Any]) -> int | None:
    """Help, completion and Hydra's own questions, answered without a pre-flight; None if the command line asks for none."""
    if args.help:
        return show_help(args, app, about=str(sys.modules[task.__module__].__doc__))
    if args.shell_completion and any(text.startswith("query=") for text in args.overrides):
        with redirect_stderr(StringIO()):  # a word that is half typed is nothing to complain about
            return int(ExitCode.OK) if complete(app) else _call_hydra(lambda node: None, app, argv)
    if args.hydra_help or args.info or args.shell_completion or args.experimental_rerun:
        return _call_hydra(lambda node: None, app, argv)
    return None


def claim_directory(plan: Plan) -> Claim:
    """Hold the directory of the run or sweep; a generated one is new and, for a single run, ends in the run's name.

    Raises:
        ConfigError: it is in use, holds a run that isn't to be resumed, or can't be written.
    """
    directory = plan.directory
    if directory.generated:
        if any(job.config.resume == "auto" for job in plan.jobs):
            raise ConfigError(f"resume=auto continues the run in {directory.key}, which is not set; add {directory.key}=DIR")
        suffix = "" if plan.multirun else f"-{slug(str(plan.jobs[0].config.name))}"
        return claim_new(directory.pattern.with_name(directory.pattern.name + suffix))
    resuming = all(job.config.resume == "auto" for job in plan.jobs)
    return claim_given(directory.pattern, resuming=resuming, key=directory.key)


def _run(task: Task, app: App, plan: Plan, claim: Claim) -> int:
    finished: list[tuple[Sequence[str], JobResult]] = []
    here = os.getpid()

    def job(node: DictConfig) -> float:
        overrides, result = _do(task, app, plan, node)
        finished.append((overrides, result))
        if plan.multirun and (result.stop or result.exit_code in STOPS) and os.getpid() == here:
            raise _SweepStopped
        return math.nan if result.exit_code or result.objective is None else result.objective

    argv = [*plan.overrides, f"{plan.directory.key}={quote(str(claim.path))}", *_flags(plan.args)]
    try:
        code = _call_hydra(job, app, argv)
    except _SweepStopped:
        code = finished[-1][1].stop or finished[-1][1].exit_code
    except KeyboardInterrupt:  # between two jobs
        code = ExitCode.INTERRUPTED
    if plan.multirun and not finished:
        finished = read_results(plan, claim.path)
    if plan.multirun:
        from src.sweep.summary import show_summary  # late: rich is slow to import, and the pre-flight has a second at most

        show_summary(finished, planned=len(plan.jobs), sweep_dir=claim.path, evaluated=app.kind is EvaluateConfig)
    if code or not finished:
        return int(code or ExitCode.ERROR)
    if plan.multirun:
        return int(len(finished) < len(plan.jobs) or any(result.exit_code for _, result in finished))
    return int(finished[0][1].exit_code)


def _do(task: Task, app: App, plan: Plan, node: DictConfig) -> tuple[Sequence[str], JobResult]:
    """One job under Hydra; whatever goes wrong becomes its result."""
    settings = HydraConfig.get()
    run_dir = Path(settings.runtime.output_dir)
    texts = [text for text in settings.overrides.task if text not in plan.inherited]
    try:
        request = build(node, parse(texts, OverridesParser.create()), app, base=Path(settings.runtime.cwd))
        return texts, _hold_and_do(task, request, run_dir, hold=plan.multirun)
    except KeyboardInterrupt:
        return texts, JobResult("KILLED", int(ExitCode.INTERRUPTED), "interrupted by Ctrl-C", None, run_dir)
    except HalfstepError as error:
        _report(str(error))
        return texts, JobResult("FAILED", int(error.exit_code), str(error), None, run_dir)
    except Exception as error:
        log.exception("the job failed")
        return texts, JobResult("FAILED", int(ExitCode.ERROR), f"{type(error).__name__}: {error}", None, run_dir)


def _hold_and_do(task: Task, request: Request, run_dir: Path, *, hold: bool) -> JobResult:
    job = Job(request.config, run_dir, request.overrides, request.differences)
    if not hold:  # a single run's directory has been claimed before Hydra started
        return task(job)
    with claim_given(run_dir, resuming=request.config.resume == "auto", key="hydra.sweep.subdir"):
        return task(job)


def _call_hydra(job: Callable[[DictConfig], object], app: App, argv: Sequence[str]) -> int:
    """``hydra.main`` on ``argv``; its SystemExit becomes the exit code."""
    register()
    typed, sys.argv = sys.argv, [sys.argv[0], *argv]
    try:
        hydra.main(config_path=str(CONF_DIR), config_name=app.config_name, version_base=VERSION_BASE)(job)()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = typed
    return int(ExitCode.OK)


def _flags(args: Namespace) -> list[str]:
    """Hydra's flags of ``args`` behind the overrides, where argparse takes both whatever order was typed."""
    flags = ["--multirun"] if args.multirun else []
    for name in ("cfg", "package", "config_dir"):
        if getattr(args, name) is not None:
            flags += [f"--{name.replace('_', '-')}", getattr(args, name)]
    return [*flags, "--resolve"] if args.resolve else flags


def _report(message: str) -> None:
    lines = message.splitlines()[:MAX_ERROR_LINES]
    sys.stderr.write("\n".join(["error: " + lines[0], *lines[1:]]) + "\n")
