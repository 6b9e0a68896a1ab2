"""Signals that ask a process to end: noted once, obeyed at once the second time."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from src.errors import ExitCode, Stopped

_EXIT_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGUSR1: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.TERMINATED,
}


class StopSignals:
    """While entered, SIGINT (Ctrl-C), SIGTERM, SIGUSR1 (SLURM's warning) and SIGHUP set ``requested`` to an exit code.

    With ``graceful`` off ``Stopped`` is raised on the spot. With it on the loop looks at ``requested`` where all ranks can agree,
    and only a second signal raises, or the first one if ``peer_failed()`` says that there is nobody left to agree with.
    ``closing`` is for the end, when everything is decided and must be written down: none raises.
    """

    def __init__(self, *, peer_failed: Callable[[], bool] = lambda: False) -> None:
        self._peer_failed = peer_failed
        self.requested = 0
        self.graceful = False
        self.closing = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in _EXIT_CODES:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        second = bool(self.requested)
        self.requested = _EXIT_CODES[signal.Signals(number)]
        if not self.closing and (second or not self.graceful or self._peer_failed()):
            raise Stopped(f"stopped at once by {signal.Signals(number).name}", exit_code=ExitCode(self.requested))
