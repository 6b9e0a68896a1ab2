"""A trained net as an MLflow model that loads without this project."""

import importlib.metadata
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

from src.tracking.base import RunRef

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch import nn

    from src.tracking.base import Images

MODEL_NAME = "model"
_REQUIREMENTS = ("mlflow", "torch", "torchvision", "numpy")


def log_model(client: "MlflowClient", ref: RunRef, model: "nn.Module", example: "Images", *, folder: Path) -> None:
    """Export, save under ``folder`` and upload a model on the CPU in eval mode; ``example`` are float32 images [N, C, H, W].

    It does what ``mlflow.pytorch.log_model`` does, without its active-run globals and without loading the model again to guess at
    requirements. Raises whatever the exporter or the store raises; the logged model is marked FAILED then.
    """
    import mlflow.pytorch
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    logged = client.create_logged_model(ref.experiment_id, name=MODEL_NAME, source_run_id=ref.run_id)
    try:
        metadata = Model(artifact_path=logged.artifact_location, model_uuid=logged.model_id, run_id=ref.run_id, model_id=logged.model_id)
        images = _two_images(example)
        with _quiet():
            mlflow.pytorch.save_model(
                model,
                str(folder),
                mlflow_model=metadata,
                signature=_signature(model, images),
                input_example=images,
                pip_requirements=[f"{name}=={importlib.metadata.version(name).split('+')[0]}" for name in _REQUIREMENTS],
                serialization_format="pt2",
            )
        client.log_model_artifacts(logged.model_id, str(folder))
    except BaseException:
        client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(ref.run_id, [LoggedModelOutput(logged.model_id, step=0)])


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export prints the whole graph when it fails, and warns about its own insides when it doesn't."""
    shapes = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = shapes.level
    shapes.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        shapes.setLevel(level)


def _two_images(example: "Images") -> "Images":
    """A batch of two: torch.export takes a batch of one for a constant."""
    import numpy as np

    return example[:2] if len(example) > 1 else np.concatenate([example, example])


def _signature(model: "nn.Module", images: "Images") -> object:
    """Any number of such images in, as many rows of logits out."""
    import numpy as np
    import torch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    with torch.no_grad():
        num_classes = model(torch.from_numpy(images)).shape[1]
    inputs = Schema([TensorSpec(images.dtype, (-1, *images.shape[1:]))])
    return ModelSignature(inputs, Schema([TensorSpec(np.dtype(np.float32), (-1, num_classes))]))
