"""How a rank ended: written by each rank, read by the launcher."""

import json
import signal
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.errors import ExitCode, HalfstepError, HangError, RankLostError, Stopped
from src.launch.files import write_json
from src.tracking.base import Status

if TYPE_CHECKING:
    from src.launch.heartbeat import Hang


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
    signal: str | None = None
    """Name of the signal that killed the rank."""
    memory: str | None = None
    """The memory of a rank that failed, in words."""
    failure: dict[str, Any] | None = None
    """The failure card of the whole run (``card.py``)."""
    restarts: int = 0
    """Fresh groups that the run needed."""

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
        elif isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error):  # torch raises it from a signal handler, anywhere
            self.status, self.exit_code = "FAILED", ExitCode.RANK_LOST
            self.reason = (
                f"a process that loads images died: {_first_line(error).rstrip(' .')} (SIGKILL is also what the kernel sends when memory "
                "runs out); lower data.num_workers, or set data.loader=resident"
            )
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


def a_peer_failed(run_dir: Path, *, rank: int) -> bool:
    """Whether another rank than ``rank`` has written that it failed."""
    others = (path for path in (run_dir / "ranks").glob("*/outcome.json") if path.parent.name != str(rank))
    return any(json.loads(path.read_text(encoding="utf-8"))["status"] == "FAILED" for path in others)


def combine(
    run_dir: Path,
    world_size: int,
    *,
    exit_codes: dict[int, int],
    stopped: Stopped | None = None,
    hang: "Hang | None" = None,
    ended: Collection[int] = (),
) -> Outcome:
    """The run's outcome from its ranks': rank 0's result, and the cause of whichever rank failed first.

    ``exit_codes`` are those the engine saw, negative for signals; ``stopped`` is the launcher's own order to end, the cause of
    whatever the ranks did then, unless they had all finished. A rank without an outcome file was killed, and that is the
    cause even if others noticed and failed before the engine did, unless the launcher itself had ``ended`` it.
    """
    outcomes = [read(run_dir, rank) for rank in range(world_size)]
    main = outcomes[0] or Outcome()
    cause = Outcome(result=main.result)
    killed = [o for o in outcomes if o is not None and o.status == "KILLED"]
    if stopped is not None and not all(o is not None and o.status == "FINISHED" for o in outcomes):
        cause.blame(stopped)
        # The engine passes a second Ctrl-C on as SIGTERM: only the launcher knows what the user wanted.
        cause.reason = next((o.reason for o in killed if o.exit_code == stopped.exit_code), cause.reason)
        return cause
    if hang is not None:
        cause.blame(HangError(_hang_reason(hang, run_dir)))
        cause.rank = hang.rank
        return cause
    lost = [rank for rank in range(world_size) if outcomes[rank] is None and rank not in ended]
    failed: Sequence[Outcome] = sorted((o for o in outcomes if o is not None and o.status == "FAILED"), key=lambda outcome: outcome.time)
    signalled = [rank for rank in lost if exit_codes.get(rank, 0) not in (0, -15)]
    if signalled or (lost and not failed and not killed):
        rank = (signalled or lost)[0]
        code = exit_codes.get(rank)
        cause.blame(RankLostError(f"rank {rank} {_how_it_went(code)} without a word; the log is {rank_log(run_dir, rank)}"))
        cause.rank = rank
        if code is not None and code < 0:
            cause.signal = _signal_name(-code)
    elif failed or killed:
        first = (failed or killed)[0]
        cause = Outcome(first.status, first.exit_code, first.reason, first.trace, first.rank, first.time, main.result)
    return cause


def rank_log(run_dir: Path, rank: int) -> Path:
    """The log of one rank."""
    return run_dir / "ranks" / str(rank) / "rank.log"


def _how_it_went(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    hint = " (SIGKILL is also what the kernel sends when memory runs out)" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code}, {_signal_name(-code)}{hint},"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _hang_reason(hang: "Hang", run_dir: Path) -> str:
    what = "is stopped by a signal" if hang.stopped else "was the first to stand still"
    stacks = f"; the stacks of ranks {', '.join(map(str, hang.answered))} are in {run_dir / 'ranks'}/*/rank.log" if hang.answered else ""
    return f"rank {hang.rank} {what}: no rank has got on for {hang.seconds:.0f} s (parallel.timeout_seconds){stacks}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
