"""Logging: people read the console, files keep everything with time and rank."""

import logging
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # ``... | head`` has read enough: rich would end the run here; it goes on, and the log file has every line.
        self.quiet = True


console = _Console(soft_wrap=True)
"""The one console, shared by log lines and the progress bar so that they do not tear each other."""

_STYLES = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}


class _ConsoleHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        console.print(Text(record.getMessage(), style=_STYLES.get(record.levelno, "")), soft_wrap=True)


class _FileHandler(logging.FileHandler):
    """A log file that can't be written, on a full disk, is said once and ends nothing."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.failed:
            self.failed = True
            console.print(Text(f"{self.baseFilename} can't be written any more: {sys.exc_info()[1]}", style="yellow"), soft_wrap=True)


def set_up(*, on_console: bool) -> None:
    """Set up the root logger anew: our messages and everybody's warnings on the console, if asked for."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.WARNING)
    logging.getLogger("src").setLevel(logging.INFO)
    if on_console:
        root.addHandler(_ConsoleHandler())


def add_file(path: Path, *, rank: int | None = None) -> logging.Handler:
    """Append everything that is logged to a file; returns the handler, for ``remove``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _FileHandler(path, encoding="utf-8")
    who = "" if rank is None else f" rank {rank}"
    handler.setFormatter(logging.Formatter(f"%(asctime)s{who} %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    return handler


def remove(handler: logging.Handler) -> None:
    """Stop writing to a file."""
    logging.getLogger().removeHandler(handler)
    handler.close()
