"""How a rank ended: written by each rank, read by the launcher."""

import json
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from src.errors import ExitCode, HalfstepError, RankLostError, Stopped
from src.launch.files import write_json
from src.tracking.base import Status


@dataclass
class Outcome:
    """The end of one rank, and what it computed up to there."""

    status: Status = "FINISHED"
    exit_code: int = 0
    reason: str | None = None
    trace: str | None = None
    rank: int = 0
    time: float = field(default_factory=time.time)
    result: dict[str, Any] = field(default_factory=dict)

    def blame(self, error: BaseException) -> None:
        """Fill in status, exit code and reason from the exception that ended the rank."""
        self.time = time.time()
        if isinstance(error, Stopped | KeyboardInterrupt):
            self.status = "KILLED"
            self.exit_code = error.exit_code if isinstance(error, Stopped) else ExitCode.INTERRUPTED
            self.reason = str(error) or "interrupted"
        elif isinstance(error, HalfstepError):
            self.status, self.exit_code, self.reason = "FAILED", error.exit_code, str(error)
        elif isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error):
            self.status, self.exit_code = "FAILED", ExitCode.OUT_OF_MEMORY
            self.reason = f"out of memory: {_first_line(error)}; lower train.batch_size, raise train.accumulate or use precision=amp"
        else:
            self.status, self.exit_code = "FAILED", ExitCode.ERROR
            self.reason = f"{type(error).__name__}: {_first_line(error)}"
            self.trace = "".join(traceback.format_exception(error))

    def write(self, run_dir: Path) -> None:
        """Write ``ranks/R/outcome.json``."""
        write_json(run_dir / "ranks" / str(self.rank) / "outcome.json", asdict(self))


def read(run_dir: Path, rank: int) -> Outcome | None:
    """A rank's outcome, or None if it died before it could write one."""
    path = run_dir / "ranks" / str(rank) / "outcome.json"
    return Outcome(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def combine(run_dir: Path, world_size: int, *, exit_codes: dict[int, int], stopped: Stopped | None = None) -> Outcome:
    """The run's outcome from its ranks': rank 0's result, and the cause of whichever rank failed first.

    ``exit_codes`` are those the engine saw, negative for signals; ``stopped`` is the launcher's own order to end, the cause of
    whatever the ranks did then, unless they had all finished. A rank without an outcome file was killed, and that is the
    cause even if others noticed and failed before the engine did.
    """
    outcomes = [read(run_dir, rank) for rank in range(world_size)]
    main = outcomes[0] or Outcome()
    cause = Outcome(result=main.result)
    killed = [o for o in outcomes if o is not None and o.status == "KILLED"]
    if stopped is not None and not all(o is not None and o.status == "FINISHED" for o in outcomes):
        cause.blame(stopped)
        if killed:
            cause.reason, cause.exit_code = killed[0].reason, killed[0].exit_code
        return cause
    lost = [rank for rank in range(world_size) if outcomes[rank] is None]
    failed: Sequence[Outcome] = sorted((o for o in outcomes if o is not None and o.status == "FAILED"), key=lambda outcome: outcome.time)
    signalled = [rank for rank in lost if exit_codes.get(rank, 0) not in (0, -15)]
    if signalled or (lost and not failed and not killed):
        rank = (signalled or lost)[0]
        code = exit_codes.get(rank)
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        cause.blame(RankLostError(f"rank {rank} {how} without a word; the log is {run_dir / 'ranks' / str(rank) / 'rank.log'}"))
    elif failed or killed:
        first = (failed or killed)[0]
        cause = Outcome(first.status, first.exit_code, first.reason, first.trace, first.rank, first.time, main.result)
    return cause


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
