"""Results read from the directories that jobs left behind."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from src.sweep.elsewhere import read_results


def plan(*jobs: list[str]) -> Any:
    return SimpleNamespace(jobs=[SimpleNamespace(overrides=overrides) for overrides in jobs], inherited=["model=alexnet"])


@pytest.fixture
def leave(tmp_path: Path) -> Callable[..., Path]:
    def leave(name: str, overrides: list[str], result: dict[str, Any] | None) -> Path:
        run_dir = tmp_path / name
        (run_dir / ".hydra").mkdir(parents=True)
        (run_dir / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(overrides), encoding="utf-8")
        if result is not None:
            (run_dir / "result.json").write_text(json.dumps(result))
        return run_dir

    return leave


def test_results_in_the_order_of_the_plan_whatever_the_directories(tmp_path: Path, leave: Callable[..., Path]) -> None:
    good = {"status": "FINISHED", "exit_code": 0, "reason": None, "objective": {"name": "val/accuracy", "value": 0.5}}
    bad = {"status": "FAILED", "exit_code": 3, "reason": "no images", "objective": {"name": "val/accuracy", "value": None}}
    deep = leave("b/deep", ["model=alexnet", "name=é x"], good)
    leave("a", ["model=alexnet", "name=y"], bad)
    leave("c", ["model=alexnet", "name=z"], None)  # killed before it could write one
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "result.json").write_text("no job's")
    found = read_results(plan(["name=z"], ["name=é x"], ["name=y"]), tmp_path)
    assert [overrides for overrides, _ in found] == [("name=é x",), ("name=y",)]
    assert [(r.status, r.exit_code, r.reason, r.objective) for _, r in found] == [
        ("FINISHED", 0, None, 0.5),
        ("FAILED", 3, "no images", None),
    ]
    assert found[0][1].run_dir == deep
