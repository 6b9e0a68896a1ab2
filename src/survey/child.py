"""Another command of this program, run to its end: its output is kept, signals are passed on."""

import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from src.errors import ExitCode, HalfstepError, Stopped

log = logging.getLogger(__name__)

PASSED_ON = (signal.SIGINT, signal.SIGTERM)
REASON = re.compile(r"(?:error: |FAILED \(exit code \d+\): |KILLED \(exit code \d+\): )(.*)")
"""The line in which a command says why it failed."""
EXPLAINED = [code for code in ExitCode if code is not ExitCode.ERROR]
"""Exit codes of errors that one line explains."""
SHOWN_LINES = 40
"""Lines of the output that are shown where one does not."""


class ChildError(HalfstepError):
    """A command that this one needed has failed; its exit code becomes ours."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = ExitCode(exit_code) if exit_code in EXPLAINED else ExitCode.ERROR


def run(module: str, arguments: Sequence[str], *, what: str) -> None:
    """Run ``python -m MODULE ARGUMENTS`` and wait.

    Raises:
        ChildError: it failed, with the reason that it gave; where that is no error of the user's, the end of its output is logged.
        Stopped: a signal that this process got, and passed on, has ended it.
    """
    command = [sys.executable, "-m", module, *arguments]
    with (
        _held_back() as stopper,
        # in a session of its own, so that Ctrl-C reaches it once, from here
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as process,
    ):
        stopper.watch(process)
        output, _ = process.communicate()
    if stopper.number is not None:
        code = ExitCode.INTERRUPTED if stopper.number == signal.SIGINT else ExitCode.TERMINATED
        raise Stopped(f"stopped by {signal.Signals(stopper.number).name}", exit_code=code)
    if process.returncode:
        lines = output.rstrip().splitlines()
        if process.returncode not in EXPLAINED:
            log.error("\n".join(lines[-SHOWN_LINES:]))
        reason = next((match[1] for line in lines if (match := REASON.match(line))), "it gave no reason")
        raise ChildError(f"{what} ended with exit code {process.returncode}: {reason}", exit_code=process.returncode)


class _Stopper:
    def __init__(self) -> None:
        self.number: int | None = None
        self._process: subprocess.Popen[str] | None = None

    def watch(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        if self.number is not None:
            process.send_signal(self.number)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        if self._process is not None:
            self._process.send_signal(number)


@contextmanager
def _held_back() -> Iterator[_Stopper]:
    stopper = _Stopper()
    before: dict[int, Any] = {number: signal.signal(number, stopper) for number in PASSED_ON}
    try:
        yield stopper
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
