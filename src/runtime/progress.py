"""Progress on the console: a live bar on a terminal, plain lines elsewhere."""

import logging
import time

from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeRemainingColumn

from src.runtime.logs import console

log = logging.getLogger(__name__)

PLAIN_LINE_SECONDS = 10.0
"""Without a terminal, long epochs get a line at the first log point after this time."""


class Progress:
    """Where the loop is. Only rank 0 shows it."""

    def __init__(self, total_steps: int, *, shown: bool) -> None:
        self._shown = shown
        self._bar: Bar | None = None
        self._last_line = time.monotonic()
        if shown and console.is_terminal:
            columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Bar(*columns, console=console, transient=True)
            self._task = self._bar.add_task("starting", total=total_steps)
            self._bar.start()

    def step(self, step: int, text: str) -> None:
        """Show a log point."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=text)
        elif self._shown and time.monotonic() - self._last_line > PLAIN_LINE_SECONDS:
            self._line(f"step {step}  {text}")

    def epoch(self, line: str) -> None:
        """Show an epoch's line, which stays."""
        if self._shown:
            self._line(line)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        log.info(text)
