"""Halfstep: train image classifiers in the precision and parallelism you choose, and know what that choice did."""

__version__ = "0.1.0"
