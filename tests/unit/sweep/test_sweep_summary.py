"""The table says what each job was, which jobs failed, with what, and which never started."""

import io
import json
from pathlib import Path

from rich.console import Console

from src.launch.result import JobResult
from src.sweep.summary import show_summary


def shown(jobs, **how) -> list[str]:
    out = io.StringIO()
    show_summary(jobs, console=Console(file=out), **how)
    assert "\x1b" not in out.getvalue()
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_table_is_plain_and_complete() -> None:
    sweep = Path("/sweep dir")
    jobs = [
        (["optim.lr=0.1", "seed=1", "+tags.x=[a,b]"], JobResult("FINISHED", 0, None, 0.987654, sweep / "0")),
        (["optim.lr=9", "seed=1", "+tags.x=[a,b]"], JobResult("FAILED", 4, "loss is [nan] since step 3", None, sweep / "1")),
        (["optim.lr=8", "seed=1", "+tags.x=[a,b]"], JobResult("KILLED", 143, "SIGTERM", 0.5, sweep / "2")),
    ]
    lines = shown(jobs, planned=4, sweep_dir=sweep)
    assert lines[0] == "sweep directory  /sweep dir"
    assert lines[1] == "all jobs         seed=1 +tags.x=[a,b]"
    assert lines[2].split() == ["job", "overrides", "objective", "status", "directory"]
    assert lines[3].split() == ["0", "optim.lr=0.1", "0.98765", "FINISHED", "0"]
    assert lines[6:] == [
        "1 of 4 jobs failed",
        "  job 1 (optim.lr=9): exit 4, loss is [nan] since step 3",
        "1 of 4 jobs killed",
        "  job 2 (optim.lr=8): exit 143, SIGTERM",
        "1 of 4 jobs did not start",
    ]


def test_speed_and_memory_stand_beside_the_objective(tmp_path: Path) -> None:
    for number, speed in enumerate((1234.5, None)):
        (tmp_path / str(number)).mkdir()
        record = {
            "objective": {"name": "val/accuracy", "value": 0.5},
            "precision": {"name": "amp", "dtype": "float16", "scaler": True},
            "samples_per_second": speed,
            "peak_memory_bytes": 3 * 2**29,
            "duration_seconds": 61.4,
            "skipped_updates": number,
        }
        (tmp_path / str(number) / "result.json").write_text(json.dumps(record))
    jobs = [([f"seed={number}"], JobResult("FINISHED", 0, None, 0.5, tmp_path / str(number))) for number in range(2)]
    lines = shown(jobs, planned=2, sweep_dir=tmp_path)
    heading = ["job", "overrides", "best", "val/accuracy", "computed", "in", "images/s", "GiB", "seconds", "skipped", "status", "directory"]
    assert lines[1].split() == heading
    assert lines[2].split() == ["0", "seed=0", "0.5", "float16", "1,234", "1.50", "61", "FINISHED", "0"]
    assert lines[3].split() == ["1", "seed=1", "0.5", "float16", "1.50", "61", "1", "FINISHED", "1"]


def test_a_lone_job_has_its_overrides_in_its_row() -> None:
    lines = shown([(["optim.lr=9"], JobResult("FINISHED", 0, None, 1.0, Path("/s/0")))], planned=1, sweep_dir=Path("/s"))
    assert [line.split()[1] for line in lines[1:]] == ["overrides", "optim.lr=9"]


def evaluated(sweep: Path, number: int, *overrides: str, metrics=None, precision=None, **more) -> tuple[list[str], JobResult]:
    (sweep / str(number)).mkdir()
    record = {"metrics": metrics or {}, "precision": precision, "samples_per_second": None} | more
    (sweep / str(number) / "result.json").write_text(json.dumps(record))
    return [*overrides], JobResult("FINISHED" if metrics else "FAILED", 0 if metrics else 3, "no images", None, sweep / str(number))


def test_an_evaluation_gives_a_row_of_measures_for_each_model_and_precision(tmp_path: Path) -> None:
    metrics = {"test/loss": 0.25, "test/accuracy": 0.9, "test/top5": 1.0, "test/ece": None}
    jobs = [
        evaluated(
            tmp_path,
            0,
            "checkpoint='runs/a b'",
            "precision=amp",
            "split=test",
            metrics=metrics,
            precision={"name": "amp", "dtype": "bfloat16"},
        ),
        evaluated(tmp_path, 1, "checkpoint='runs/a b'", "precision=o3", "split=test"),
        (["checkpoint='runs/a b'", "precision=fp32", "split=test"], JobResult("FAILED", 5, "gone", None, tmp_path / "2")),
    ]
    lines = shown(jobs, planned=3, sweep_dir=tmp_path, evaluated=True)
    assert lines[1] == "all jobs         checkpoint='runs/a b' split=test"
    columns = "job checkpoint precision accuracy top5 loss ece computed in status directory"
    assert " ".join(lines[2].split()) == columns
    assert " ".join(lines[3].split()) == "0 runs/a b amp 0.9000 1.0000 0.2500 - bfloat16 FINISHED 0"
    assert " ".join(lines[4].split()) == "1 runs/a b o3 - - - - - FAILED 1"
    assert " ".join(lines[5].split()) == "2 runs/a b fp32 - - - - - FAILED 2"


def test_other_choices_and_speed_have_columns_where_there_are_any(tmp_path: Path) -> None:
    more = {"metrics": {"val/accuracy": 0.5}, "precision": {"name": "fp32", "dtype": "float32"}, "samples_per_second": 1234.5}
    jobs = [evaluated(tmp_path, number, f"checkpoint={name}", "split=val", f"seed={number}", **more) for number, name in enumerate("ab")]
    lines = shown(jobs, planned=2, sweep_dir=tmp_path, evaluated=True)
    assert " ".join(lines[2].split()) == "job checkpoint precision overrides accuracy top5 loss ece computed in images/s status directory"
    assert " ".join(lines[4].split()) == "1 b fp32 seed=1 0.5000 - - - float32 1,234 FINISHED 1"
