"""Errors of stores as one line that a person can read and a log may keep."""

import re


def shown_uri(text: str) -> str:
    """An address, or a text with addresses, without user names and passwords: for messages and records."""
    return re.sub(r"(?<=://)[^/\s]*@", "", text)


def brief(error: BaseException) -> str:
    """What lies at the bottom of an error of a store, in one line without a password: MLflow and SQLAlchemy write pages on top."""
    while (below := error.__cause__ or error.__context__) is not None and str(below):
        error = below
    return first_line(error)


def first_line(error: BaseException) -> str:
    """The beginning of an error's text, without a password."""
    lines = str(error).strip().splitlines()
    return shown_uri(lines[0])[:200] if lines else type(error).__name__
