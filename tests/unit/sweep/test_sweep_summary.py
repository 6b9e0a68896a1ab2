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
    ]
    show_summary(jobs, planned=3, console=Console(file=out))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0].split() == ["job", "overrides", "objective", "status"]
    assert lines[1].split() == ["0", "optim.lr=0.1", "+tags.x=[a,b]", "0.98765", "FINISHED"]
    assert lines[3] == "1 of 3 jobs failed"
    assert lines[4] == "  job 1 (optim.lr=9): exit 4, loss is [nan] since step 3"
    assert lines[5] == "1 of 3 jobs did not start"
    assert "\x1b" not in out.getvalue()
