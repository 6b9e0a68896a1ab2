"""What a person reads at the start and at the end of a run."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from src.config.runfile import flatten
from src.config.values import show

_MEASURED = ("val/", "test/", "train/loss", "train/accuracy", "train/top5", "train/ece")
"""Beginnings of the metrics that say how good a model is."""


def config_lines(content: dict[str, Any]) -> Text:
    """The composed config, a line a section: every key that has a value; run.yaml has all."""
    lone = {key: value for key, value in content.items() if not isinstance(value, dict)}
    sections = {"run": lone} | {key: value for key, value in content.items() if isinstance(value, dict)}
    width = max(len(name) for name in sections)
    lines = []
    for name, values in sections.items():
        shown = [f"{key}={show(value)}" for key, value in flatten(values).items() if value not in (None, "", "[]")]
        if shown:
            lines.append(Text(f"{name:<{width}}  ", style="bold").append(" ".join(shown), style="not bold cyan"))
    return Text("\n").join(lines)


def closing_lines(result: dict[str, Any], *, run_dir: Path, own_code: bool = False, again: str | None = None) -> list[str]:
    """The end of a run in a dozen lines: metrics, what was computed, speed, where everything is, what to type next.

    ``own_code``: a function of the user's own took part, which an evaluation must be allowed to run. ``again``: the command
    that goes on with the run, if it can be gone on with.
    """
    rows: list[tuple[str, str]] = []
    best = result.get("best")
    if best and best["value"] is not None:
        rows.append(("best", f"{result['objective']['name']} {best['value']:.4f} at epoch {best['epoch']}, step {best['step']}"))
    metrics = {name: value for name, value in result["metrics"].items() if name.startswith(_MEASURED)}
    if metrics:
        rows.append(("last", "  ".join(f"{name} {value:.4f}" for name, value in sorted(metrics.items()) if value is not None)))
    if precision := result["precision"]:
        scaling = "loss scaling on" if precision["scaler"] else "no loss scaling"
        rows.append(("computed in", f"{precision['dtype']} on {result['device']}, {scaling} (precision={precision['name']})"))
        rows.append(("ranks", str(result["world_size"])))
    if result.get("samples_per_second"):
        rows.append(("speed", f"{result['samples_per_second']:,.0f} images/s" + (" in training" if result["steps"] else "")))
    if result.get("skipped_updates"):
        rows.append(("skipped", f"{result['skipped_updates']} of {result['steps']} updates had inf or NaN gradients"))
    if found := result.get("predictions"):
        broken = f", {found['broken']} could not be read" if found["broken"] else ""
        rows.append(("predictions", f"{run_dir / found['path']} ({found['count']} images{broken})"))
    if export := result.get("export"):
        rows.append(("how to feed", str(run_dir / export["preprocessing"])))
    rows.append(("run directory", str(run_dir)))
    if again is not None:
        rows.append(("go on", again))
    if best and (checkpoint := result["checkpoint"]["best"]):
        trust = " trust_code=true" if own_code else ""
        rows.append(("evaluate", f"{_python()} -m src.evaluate {override('checkpoint', run_dir / checkpoint)}{trust}"))
    if result["tracking"]["run_id"]:
        rows.append(("MLflow run", result["tracking"]["run_id"]))
        rows.append(("open the UI", ui_command(result["tracking"]["uri"])))
    if (run_dir / "tensorboard").is_dir():
        rows.append(("TensorBoard", f"{_python()} -m tensorboard.main --logdir {shlex.quote(str(run_dir / 'tensorboard'))}"))
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def go_on(overrides: Sequence[str], run_dir: Path) -> str:
    """The command that goes on with a training run: in place if it was started so, else in a new directory."""
    typed = [shlex.quote(text) for text in overrides if text.partition("=")[0] != "resume"]
    where = ["resume=auto", override("hydra.run.dir", run_dir)] if "resume=auto" in overrides else [override("resume", run_dir)]
    return " ".join([_python(), "-m src.train", *typed, *where])


def ui_command(uri: str) -> str:
    """The command that shows a store in MLflow's UI, from any directory; a server is its own UI."""
    if uri.startswith("http"):
        return uri
    return f"{_python()} -m mlflow ui --host 127.0.0.1 --workers 1 --backend-store-uri {shlex.quote(uri)}"


def override(key: str, path: Path) -> str:
    """``key=path`` as it must be typed: quoted for Hydra's grammar and for the shell, where that is needed."""
    text = str(path)
    if not re.fullmatch(r"[A-Za-z0-9_./@+-]+", text):
        # In quotes only the quote itself, backslashes before one, and OmegaConf's ${ are special.
        text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text.replace("${", "\\${"))
        text = f"'{text}'"
    return shlex.quote(f"{key}={text}")


def _python() -> str:
    return shlex.quote(sys.executable)
