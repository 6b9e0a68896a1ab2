"""Errors a user can cause, each with the exit code of the contract."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every entry point."""

    OK = 0
    ERROR = 1
    CONFIG = 2
    DATA = 3
    NON_FINITE = 4
    CHECKPOINT = 5
    RANK_LOST = 6
    HANG = 7
    OUT_OF_MEMORY = 8
    TRY_AGAIN = 75
    INTERRUPTED = 130
    TERMINATED = 143


class HalfstepError(Exception):
    """Base of the errors that end a run with a message and without a traceback."""

    exit_code = ExitCode.ERROR


class ConfigError(HalfstepError):
    """A key, value or combination that can't work; raised before anything is created where possible."""

    exit_code = ExitCode.CONFIG


class DataError(HalfstepError):
    """Images or labels that are missing, empty or broken."""

    exit_code = ExitCode.DATA


class NonFiniteError(HalfstepError):
    """Too many consecutive updates were skipped because of inf or NaN, or a prediction holds one."""

    exit_code = ExitCode.NON_FINITE


class CheckpointError(HalfstepError):
    """A checkpoint that is missing, damaged, foreign or does not fit this run."""

    exit_code = ExitCode.CHECKPOINT


class RankLostError(HalfstepError):
    """A rank died without saying why (a signal, usually)."""

    exit_code = ExitCode.RANK_LOST


class HangError(HalfstepError):
    """No rank has got on for longer than ``parallel.timeout_seconds``."""

    exit_code = ExitCode.HANG


class TryAgainError(HalfstepError):
    """Something outside this program was away; the same command may work later."""

    exit_code = ExitCode.TRY_AGAIN


class Stopped(HalfstepError):
    """A signal ended the run; ``exit_code`` is 130 or 143."""

    def __init__(self, message: str, *, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code
