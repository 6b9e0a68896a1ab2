"""The two examinations, from config to what is shown."""

import logging
import time
from functools import partial

import torch
from rich.console import Console

from src.config.check_devices import num_processes
from src.config.schema import Config, CustomModelConfig, PrecisionConfig
from src.errors import ConfigError
from src.runtime import rank as ranks
from src.survey import machine, tables
from src.survey.console import show_line, show_table, widen
from src.survey.coverage import Coverage, observe
from src.survey.formats import matmul_speeds, measurable
from src.survey.reasons import Timing, reasons
from src.survey.trial import Shape, Trial, build_trial, input_shape, step_seconds

log = logging.getLogger(__name__)

IMAGES = 2
"""Images of the step that is looked at: dtypes don't depend on them, and batch norm needs two."""
CPU_STEP_SECONDS = 2.0
LIMIT_SECONDS = 10.0
"""The longest time for warming up, and for measuring."""


def examine_machine(config: Config, console: Console) -> None:
    """Show what this machine is and what works and is fast on it; a few seconds."""
    device = start(config, console)
    names = measurable(device)
    speeds = matmul_speeds(device, names)
    show_table(console, ("this machine", ""), machine.facts(device))
    tables.show_formats(console, names, speeds, device)
    tables.show_modes(console, machine.precision_modes(device, speeds))
    tables.show_parallel(console, machine.parallel_modes(config, device))
    show_line(console, tables.half_sentence(speeds, device))


def examine_coverage(config: Config, console: Console) -> None:
    """Show what the run of ``config`` would compute in, module by module, and what its precision mode gains.

    Raises:
        ConfigError: the network, its mode or its image size can't work.
    """
    device = start(config, console)
    shape = input_shape(config)
    name = config.precision.name
    trial = build_trial(config, config.precision, shape=shape, device=device)
    start_time = time.perf_counter()
    coverage = observe_step(config, trial, shape)
    seconds = time.perf_counter() - start_time
    formats = coverage.formats()
    expected = str(trial.precision.dtype).removeprefix("torch.")
    expected = formats[0] if expected == "float32" and formats else expected
    where = f"model={config.model.name} precision={name} on {ranks.device_name(device)}, random images of {shape}"
    show_line(console, f"{where}, no data loaded:")
    tables.show_coverage(console, coverage, images=IMAGES, expected=expected)
    forward, backward = (coverage.share((expected,), backward=backward) for backward in (False, True))
    show_line(console, f"{forward:.1%} of the forward FLOPs and {backward:.1%} of the backward FLOPs run in {expected}.")
    speeds = matmul_speeds(device, [found for found in formats if found in measurable(device)])
    timing = None
    if set(formats) - {"float32"}:
        try:
            timing = measure(config, trial, shape, observed_seconds=seconds)
        except torch.OutOfMemoryError:
            show_line(console, "Not timed: a step does not fit into the GPU's memory; use a smaller train.batch_size.")
    for sentence in reasons(name, coverage, trial.working, timing, speeds=speeds, device=device, images=IMAGES):
        show_line(console, sentence)
    show_line(console, "Waiting for data can't be seen here: look at perf/data_wait of a run.")


def start(config: Config, console: Console) -> torch.device:
    """Threads as in a run of one process, room for the tables; returns the device to examine."""
    widen(console)
    ranks.use_threads(1)
    return ranks.pick_device(config.device)


def observe_step(config: Config, trial: Trial, shape: Shape) -> Coverage:
    """The coverage of one micro-batch of ``IMAGES``. Raises ``ConfigError`` for a network that can't take them."""
    try:
        return observe(trial.working, partial(trial.forward_backward, *trial.batch(IMAGES, shape)))
    except (RuntimeError, ValueError, AssertionError) as error:
        if isinstance(config.model, CustomModelConfig) or isinstance(error, torch.OutOfMemoryError):
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"model={config.model.name} with precision={config.precision.name} can't train on images of {shape} ({first}); "
            "set another data.image_size"
        ) from error


def measure(config: Config, trial: Trial, shape: Shape, *, observed_seconds: float) -> Timing:
    """A step in the mode and in fp32. A GPU gets a rank's whole micro-batch, a CPU what fits into about 2 s a step."""
    ranks_here = num_processes(config, torch.cuda.device_count())
    micro_batch = config.train.batch_size // (ranks_here * config.train.accumulate)
    if trial.device.type == "cpu":
        if observed_seconds < CPU_STEP_SECONDS:  # most of it was the start
            observed_seconds, _ = step_seconds(trial, *trial.batch(IMAGES, shape), limit=0.1)
        micro_batch = min(micro_batch, max(1, int(CPU_STEP_SECONDS * IMAGES / observed_seconds)))
    size = max(IMAGES, micro_batch)
    batch = trial.batch(size, shape)
    if observed_seconds > LIMIT_SECONDS:
        mode_seconds, mode_steps = observed_seconds, 1  # the step that was looked at will do
    else:
        mode_seconds, mode_steps = step_seconds(trial, *batch, limit=LIMIT_SECONDS)
    # last, since building a mode switches TF32 for the whole process
    full = build_trial(config, PrecisionConfig(name="fp32"), shape=shape, device=trial.device)
    full_seconds, full_steps = step_seconds(full, *batch, limit=LIMIT_SECONDS)
    return Timing(size, full_seconds, full_steps, mode_seconds, mode_steps)
