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


def set_library_variables(*, deterministic: bool) -> None:
    """What libraries read from the environment when they are loaded, unless the user has set it: here and in the ranks.

    Threads that wait for each other sleep instead of spinning: where another process wants a core too, spinning made small
    networks ten times slower. cuBLAS is deterministic only with a workspace of fixed size.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def global_rank() -> int:
    """This process's rank, as the engine numbered it."""
    return int(os.environ.get("RANK", "0"))
