"""The failure card: which rank failed first, of what, how far it was, and where to read more."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from src.launch import outcome as outcomes
from src.launch.heartbeat import heartbeat_file
from src.launch.outcome import Outcome
from src.runtime.pulse import read_beat
from src.tracking.journal import read_points

_NEWEST = 4096
"""Bytes at the end of a journal, which hold the last value of every metric."""


def failure_card(outcome: Outcome, *, run_dir: Path, memory: Mapping[int, int] = MappingProxyType({})) -> dict[str, Any] | None:
    """What is known of the rank that ``outcome`` blames, for result.json; None unless the run failed.

    ``memory`` holds the largest resident set of each rank that the launcher saw, for a rank that can't tell any more.
    """
    if outcome.status != "FAILED":
        return None
    rank = outcome.rank
    own = outcomes.read(run_dir, rank)
    result = {} if own is None else own.result
    beat = read_beat(heartbeat_file(run_dir, rank))
    resident = memory.get(rank)
    return {
        "rank": rank,
        "cause": outcome.reason,
        "signal": outcome.signal,
        "traceback": outcome.trace,
        "step": result.get("steps", None if beat is None else beat.step),
        "metrics": result.get("metrics") or _last_metrics(run_dir),
        "memory": own.memory if own is not None and own.memory else None if resident is None else f"{resident / 2**20:,.0f} MiB resident",
        "log": str(outcomes.rank_log(run_dir, rank).relative_to(run_dir)),
    }


def card_lines(outcome: Outcome, *, run_dir: Path) -> list[str]:
    """How a run that did not finish ended, for a person: the cause first, a traceback last."""
    lines = [f"{outcome.status} (exit code {int(outcome.exit_code)}): {outcome.reason}"]
    if outcome.failure is not None:
        card = outcome.failure
        lines.append(f"  rank          {card['rank']}" + ("" if card["step"] is None else f", after step {card['step']}"))
        metrics = {name: value for name, value in card["metrics"].items() if name.startswith(("train/", "val/")) and value is not None}
        if metrics:
            lines.append("  last metrics  " + "  ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items())))
        if card["memory"]:
            lines.append(f"  memory        {card['memory']}")
        if (run_dir / card["log"]).exists():
            lines.append(f"  log           {run_dir / card['log']}")
    return lines + ([outcome.trace.rstrip()] if outcome.trace else [])


def _last_metrics(run_dir: Path) -> dict[str, float]:
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return {}
    points, _ = read_points(path, offset=max(0, path.stat().st_size - _NEWEST))
    return {point.name: point.value for point in points}
