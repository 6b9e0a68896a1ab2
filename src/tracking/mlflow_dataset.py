"""A data set as an input of an MLflow run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.tracking.messages import shown_uri
from src.tracking.names import shorten

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MAX_NAME = 500
_MAX_DIGEST = 36


def log_dataset(client: "MlflowClient", run_id: str, about: Mapping[str, Any], *, context: str) -> None:
    """Make the data set that ``data.json`` describes an input of the run; a second time changes nothing.

    The store knows it again by name and digest. ``about`` has ``name``, ``source``, ``digest`` (SHA-256 in hex, of which MLflow
    takes the first 36 digits) and the sizes.
    ``context`` is what the run uses it for: training, validation or test. Raises any error of the store.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = shown_uri(str(about["source"]))
    # these two of MLflow's source types cover a folder and what a library makes or downloads
    kind, place = ("local", {"uri": source}) if Path(source).is_absolute() else ("code", {"tags": {"mlflow.source.name": source}})
    profile = {key: value for key, value in about.items() if key not in ("name", "source")}
    dataset = Dataset(
        name=shorten(str(about["name"]), _MAX_NAME),
        digest=str(about["digest"])[:_MAX_DIGEST],
        source_type=kind,
        source=json.dumps(place, ensure_ascii=False),
        profile=json.dumps(profile, ensure_ascii=False),
    )
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])])
