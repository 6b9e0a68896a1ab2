"""Does a resumed run of this config equal one that went straight on? Two short runs, compared step by step."""

import json
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from src.checkpoint import manifest
from src.checkpoint.find import step_files
from src.checkpoint.load import load
from src.config.schema import Config, CustomDataConfig, CustomModelConfig
from src.errors import CheckpointError, ConfigError
from src.survey import child
from src.survey.compare import Divergence, compare_payloads, compare_points, content, counts
from src.survey.console import show_line, show_table, widen
from src.sweep.overrides import quote
from src.tracking.base import Point
from src.tracking.journal import read_points

STEPS = 10
EPOCH_STEPS = 4
"""Optimizer steps of an epoch, unless ``data.subset`` is given or the data is smaller."""
OWN = ("doctor", "tracking", "save", "dry_run", "train.epochs", "train.max_steps", "train.log_every")
"""Sections and keys that the proof sets itself."""


def prove_resume(config: Config, console: Console, *, overrides: Sequence[str]) -> None:
    """Train a few steps twice with the user's ``overrides``, the second time from a checkpoint of the first, and compare everything.

    Raises:
        CheckpointError: the two runs differ; says where first, by how much, and what to try.
        ConfigError: ``resume`` is set.
        ChildError: a run failed.
    """
    if config.resume is not None:
        raise ConfigError("resume has no meaning for doctor.check=resume_proof, which resumes a run of its own; leave it out")
    widen(console)
    with tempfile.TemporaryDirectory(prefix="halfstep-proof-") as name:
        folder = Path(name)
        typed = arguments(config, overrides)
        show_line(console, f"python -m src.train {shlex.join(typed)}")
        straight, resumed = folder / "straight", folder / "resumed"
        child.run("src.train", [*typed, f"hydra.run.dir={quote(str(straight))}"], what="the run that goes straight on")
        start = choose_start(straight)
        show_line(console, f"Again from the checkpoint of step {start.stem.removeprefix('step-').lstrip('0')}.")
        again = [f"resume={quote(str(start))}", f"hydra.run.dir={quote(str(resumed))}"]
        child.run("src.train", [*typed, *again], what="the resumed run")
        device = str(json.loads((straight / "result.json").read_text(encoding="utf-8"))["effective"]["device"])
        report(config, console, straight, resumed, after=manifest.read(start)["step"], device=device)


def arguments(config: Config, overrides: Sequence[str]) -> list[str]:
    """The command line of both runs: the user's own, cut down to a few steps, with a checkpoint of each."""
    kept = [text for text in overrides if not _sets(text, OWN)]
    steps, batch_size = STEPS, config.train.batch_size
    if config.data.subset is None:
        kept.append(f"data.subset={EPOCH_STEPS * batch_size}")
    else:  # at least to the end of the first epoch
        steps = max(steps, config.data.subset // batch_size + STEPS // 2)
    # a metric point covers several steps, so that one is under way where the run is resumed; in the background steps may be left out
    return [
        *kept,
        "tracking=none",
        f"train.epochs={steps}",
        f"train.max_steps={steps}",
        f"train.log_every={EPOCH_STEPS}",
        "save.every_steps=1",
        f"save.keep={steps}",
        "save.background=false",
    ]


def choose_start(run_dir: Path) -> Path:
    """A checkpoint a little behind the middle of the run, in the middle of an epoch if there is one with a middle."""
    files = step_files(run_dir / "checkpoints")[::-1]
    about = [manifest.read(path) for path in files]
    before = [0, *(known["epoch"] for known in about)]
    usable = list(zip(files, about, before, strict=False))[:-1]
    if not usable:
        raise ConfigError("the run has a single step, so there is nothing to resume; use more images or a smaller train.batch_size")
    middle = [(path, known) for path, known, epoch in usable if known["epoch"] == epoch] or [(path, known) for path, known, _ in usable]
    return min(middle, key=lambda found: abs(found[1]["step"] - 0.6 * about[-1]["step"]))[0]


def report(config: Config, console: Console, straight: Path, resumed: Path, *, after: int, device: str) -> None:
    """Compare the two run directories in the order of the steps; say what was equal, or raise with the first difference."""
    files = [{manifest.read(path)["step"]: path for path in step_files(run / "checkpoints")} for run in (straight, resumed)]
    steps = sorted(step for step in files[0].keys() | files[1].keys() if step > after)
    points = [read_points(run / "metrics.jsonl")[0] for run in (straight, resumed)]
    later = compare_points(*points, after=after)
    for step in steps:
        alone = [found for found, known in zip(("went straight on", "was resumed"), files, strict=True) if step in known]
        if len(alone) == 1:
            raise diverged([Divergence(step, "checkpoint", "", f"only in the run that {alone[0]}")], config, device=device)
        one, other = (load(known[step]) for known in files)
        found = compare_payloads(step, one, other) + [point for point in later if point.step <= step]
        if found:
            raise diverged(found, config, device=device)
    if later:
        raise diverged(later, config, device=device)
    show_proof(console, one, points[0], steps=steps, after=after)


def show_proof(console: Console, payload: dict[str, object], points: Sequence[Point], *, steps: Sequence[int], after: int) -> None:
    """What was compared and found equal; ``payload`` is one of the checkpoints."""
    rows = [(part, f"{n['tensors']:,}", f"{n['values']:,}", f"{n['others']:,}") for part, n in content(payload).items()]
    columns = ("in each checkpoint", "tensors", "their values", "other values")
    show_table(console, columns, rows, right=columns[1:])
    number = sum(counts(point, after=after) for point in points)
    show_line(
        console,
        f"Proved: resumed after step {after}, steps {steps[0]} to {steps[-1]} equal those of a run that went straight on, bit for bit: "
        f"{len(steps)} checkpoints and {number} metric points. Times (perf/*) were not compared.",
    )


def diverged(found: Sequence[Divergence], config: Config, *, device: str) -> CheckpointError:
    """The error for a resume that is not exact: ``found`` begins with the first difference."""
    others = list(dict.fromkeys(difference.part for difference in found[1:] if difference.step == found[0].step))
    also = f"; at that step also {', '.join(others)}" if others else ""
    return CheckpointError(f"the resumed run diverges: {found[0]}{also}. {advice(config, device=device)}")


def advice(config: Config, *, device: str) -> str:
    """What may be the cause of a resume that is not exact, the most likely first."""
    tips = []
    if device.startswith("cuda") and not config.deterministic:
        tips.append("kernels of a GPU may add in any order: try deterministic=true")
    if isinstance(config.model, CustomModelConfig) or isinstance(config.data, CustomDataConfig):
        tips.append(
            "your own function may keep a state outside the network's state_dict, or draw random numbers from elsewhere than torch, "
            "numpy and random"
        )
    tips.append("data.num_workers=0 shows whether it is the loader's processes")
    return "; ".join(tips).capitalize()


def _sets(text: str, keys: Sequence[str]) -> bool:
    key = text.lstrip("+").partition("=")[0]
    return any(key == own or key.startswith(f"{own}.") for own in keys)
