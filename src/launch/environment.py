"""This process's environment, kept as it was."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def environment_restored() -> Iterator[None]:
    """Undo what happens to ``os.environ`` inside: libraries leave variables behind that the next job of a sweep would inherit."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
