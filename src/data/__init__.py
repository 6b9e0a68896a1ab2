"""Images and labels: data sets, splits, the order of an epoch, and batches on the device."""

from src.data.base import Batch, Data, EvalFeed, InputFormat, InputNeeds, Placement, TrainFeed
from src.data.build import build_data, build_eval

__all__ = ["Batch", "Data", "EvalFeed", "InputFormat", "InputNeeds", "Placement", "TrainFeed", "build_data", "build_eval"]
