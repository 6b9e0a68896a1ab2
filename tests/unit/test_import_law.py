"""The import law of the project: who may know whom."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
MODULES = sorted(SRC.rglob("*.py"))
FAMILIES = ("models", "data", "optim", "precision", "parallel", "tracking", "checkpoint")
ENTRY_POINTS = {"train.py", "evaluate.py", "predict.py", "export.py"}


def name(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def imports_any(path: Path, *packages: str) -> list[str]:
    return [i for i in imports(path) if any(i == p or i.startswith(p + ".") for p in packages)]


def violations(allowed, *packages: str) -> dict[str, list[str]]:
    return {name(p): found for p in MODULES if not allowed(name(p)) and (found := imports_any(p, *packages))}


def test_hydra_stays_at_the_front():
    assert not violations(lambda m: m in ENTRY_POINTS or m == "config/store.py" or m.startswith("sweep/"), "hydra")


def test_mlflow_stays_in_one_module():
    assert not violations(lambda m: m.startswith("tracking/mlflow"), "mlflow")
    for path in (SRC / "tracking").glob("mlflow*.py"):
        top = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)]
        assert "mlflow" not in {(getattr(n, "module", None) or n.names[0].name).split(".")[0] for n in top}, name(path)


def test_the_config_is_light():
    assert not violations(lambda m: not m.startswith("config/"), "torch", "mlflow", "torchvision", "numpy")


def test_collectives_stay_in_parallel_launch_and_runtime():
    allowed = ("parallel/", "launch/", "runtime/")
    assert not violations(lambda m: m.startswith(allowed), "torch.distributed")


@pytest.mark.parametrize("family", FAMILIES)
def test_families_do_not_know_each_other(family):
    others = [f"src.{f}" for f in FAMILIES if f != family]
    others += [
        "src.engine",
        "src.launch",
        "src.sweep",
        "src.build",
        "src.network",
        "src.worker",
    ]
    assert not violations(lambda m: not m.startswith(f"{family}/"), *others)


def test_the_engine_knows_protocols_only():
    forbidden = ["src.launch", "src.sweep", "src.models", "src.build", "src.network", "src.worker", "src.tracking.mlflow"]
    forbidden += ["src.precision.mixed", "src.precision.half", "src.parallel.ddp", "src.parallel.single"]
    assert not violations(lambda m: not m.startswith("engine/"), *forbidden)


def test_the_launcher_does_not_know_what_is_trained():
    assert not violations(lambda m: not m.startswith("launch/"), "src.engine", "src.models", "src.data")


def test_the_environment_is_read_in_three_places():
    for path in MODULES:
        if not name(path).startswith(("launch/", "runtime/rank.py", "runtime/fault.py")):
            uses = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv")]
            assert not uses, name(path)


def test_the_engine_reads_the_device_in_the_meter_only():
    for path in (SRC / "engine").glob("*.py"):
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute) and n.attr in ("item", "tolist")]
        assert path.name in ("meter.py", "evaluate.py") or not calls, path.name


def test_nothing_prints():
    for path in MODULES:
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "print"]
        assert not calls, name(path)
