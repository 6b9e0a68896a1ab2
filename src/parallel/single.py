"""One process, one device."""

from src.parallel.base import Parallel


class Single(Parallel):
    """No other ranks: every exchange is the identity."""

    name = "single"
