"""The table says which jobs failed, with what, and which never started."""

import io
from pathlib import Path

from rich.console import Console

from src.launch.result import JobResult
from src.sweep.summary import show_summary


def test_the_table_is_plain_and_complete() -> None:
    out = io.StringIO()
    jobs = [
        (["optim.lr=0.1", "+tags.x=[a,b]"], JobResult("FINISHED", 0, None, 0.987654, Path("0"))),
        (["optim.lr=9"], JobResult("FAILED", 4, "loss is [nan] since step 3", None, Path("1"))),
        (["optim.lr=8"], JobResult("KILLED", 143, "SIGTERM", 0.5, Path("2"))),
    ]
    show_summary(jobs, planned=4, console=Console(file=out))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0].split() == ["job", "overrides", "objective", "status"]
    assert lines[1].split() == ["0", "optim.lr=0.1", "+tags.x=[a,b]", "0.98765", "FINISHED"]
    assert lines[4:] == [
        "1 of 4 jobs failed",
        "  job 1 (optim.lr=9): exit 4, loss is [nan] since step 3",
        "1 of 4 jobs killed",
        "  job 2 (optim.lr=8): exit 143, SIGTERM",
        "1 of 4 jobs did not start",
    ]
    assert "\x1b" not in out.getvalue()
