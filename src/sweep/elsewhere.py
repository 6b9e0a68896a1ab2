"""Results of a sweep's jobs that a launcher of Hydra's (submitit on SLURM) ran in other processes, read from their directories."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from src.launch.result import JobResult
from src.sweep.preflight import Plan


def read_results(plan: Plan, sweep_dir: Path) -> list[tuple[Sequence[str], JobResult]]:
    """Overrides and result of each job of ``plan`` that left a ``result.json`` under ``sweep_dir``, in the order of the plan."""
    found: dict[tuple[str, ...], JobResult] = {}
    for path in sweep_dir.rglob("result.json"):
        record = path.parent / ".hydra" / "overrides.yaml"
        if not record.exists():
            continue
        overrides = yaml.safe_load(record.read_text(encoding="utf-8"))
        result = json.loads(path.read_text(encoding="utf-8"))
        found[tuple(text for text in overrides if text not in plan.inherited)] = JobResult(
            result["status"], result["exit_code"], result["reason"], result["objective"]["value"], path.parent
        )
    keys = [tuple(job.overrides) for job in plan.jobs]
    return [(key, found[key]) for key in keys if key in found]
