"""Tables of predictions: every row, whatever the names, and files that can't be read."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from src.config.schema import PrecisionConfig
from src.data.listing import Listed
from src.errors import ConfigError, DataError, NonFiniteError
from src.parallel import Parallel
from src.precision import build_precision
from src.runtime.rank import Rank
from src.serving.predictions import Guess, Prediction, predict, write

ODD = ["plain", "comma, quote\" and 'apostrophe'", "line\nbreak", "ünï"]
ROWS = [
    *(Prediction(f"/x/{name}.png", [Guess(name, 0.75), Guess("b", 0.25)]) for name in ODD),
    Prediction("/x/broken.png", [], "it is empty"),
]


def test_a_csv_file_holds_every_name_as_it_is(tmp_path):
    write(tmp_path / "p.csv", ROWS)
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert [row["path"] for row in read] == [row.path for row in ROWS]
    assert [row["class"] for row in read] == [*ODD, ""]
    assert (float(read[0]["probability"]), float(read[0]["probability_2"]), read[0]["class_2"]) == (0.75, 0.25, "b")
    assert [row["error"] for row in read] == ["", "", "", "", "it is empty"]
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_json_lines_hold_the_same(tmp_path):
    write(tmp_path / "p.jsonl", ROWS)
    read = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["path"], row["class"]) for row in read] == [*zip([row.path for row in ROWS], [*ODD, None], strict=True)]
    assert read[0]["top5"] == [{"class": "plain", "probability": 0.75}, {"class": "b", "probability": 0.25}]
    assert (read[-1]["top5"], read[-1]["error"]) == ([], "it is empty")


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl"])
def test_a_table_that_came_to_exist_meanwhile_stays(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="exists; nothing is overwritten"):
        write(tmp_path / name, ROWS)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_a_name_with_no_room_for_more_is_written(tmp_path):
    path = tmp_path / ("a" * 251 + ".csv")
    write(path, ROWS)
    assert list(tmp_path.iterdir()) == [path]


def test_where_nothing_can_be_written_the_option_is_named():
    path = Path("/dev/fd/new.csv")  # a folder that takes no file, even of root
    with pytest.raises(ConfigError, match=r"predict\.output=/dev/fd/new\.csv can't be written \(.+\); give another file"):
        write(path, ROWS)


class Net(nn.Module):
    """Logits are the images themselves."""

    def forward(self, images):
        return images.flatten(1)


def classify(logits, *, class_names, errors=None, allowed=0):
    batches = [Listed(list(range(start, min(start + 2, len(logits)))), logits[start : start + 2], errors or {}) for start in (0, 2, 4)]
    return predict(
        Net(),
        SimpleNamespace(batches=lambda: iter(batches)),
        [f"{row}.png" for row in range(len(logits))],
        class_names=class_names,
        allowed_errors=allowed,
        precision=build_precision(PrecisionConfig(name="fp32"), device=torch.device("cpu")),
        parallel=Parallel(Rank()),
    )


@pytest.mark.parametrize("num_classes", [2, 5, 9])
def test_probabilities_are_the_softmax_in_order(num_classes):
    logits = torch.randn(5, num_classes, generator=torch.Generator().manual_seed(0)) * 5
    names = [f"class {number}" for number in range(num_classes)]
    found = classify(logits, class_names=names)
    expected = logits.double().softmax(dim=1)
    assert [prediction.path for prediction in found] == [f"{row}.png" for row in range(5)]
    for prediction, row in zip(found, expected, strict=True):
        order = row.argsort(descending=True)[:5].tolist()
        assert [guess.name for guess in prediction.best] == [names[index] for index in order]
        assert [guess.probability for guess in prediction.best] == pytest.approx(row[order].tolist(), abs=1e-6)


def test_files_that_cant_be_read_are_counted_against_the_limit():
    logits = torch.eye(5)
    errors = {1: "one is broken", 4: "four is broken"}
    found = classify(logits, class_names=["a", "b", "c"], errors=errors, allowed=2)
    assert [prediction.error for prediction in found] == [None, "one is broken", None, None, "four is broken"]
    assert not found[1].best
    assert found[3].best[0].name == "unused 3"
    with pytest.raises(DataError, match=r"data\.skip_broken=1 but 2 images can't be read: one is broken; four is broken"):
        classify(logits, class_names=["a", "b", "c"], errors=errors, allowed=1)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_an_image_without_a_probability_ends_the_run(value):
    logits = torch.eye(5)
    logits[3, 2] = value
    with pytest.raises(NonFiniteError, match=r"logits of 3\.png hold inf or NaN in precision=fp32"):
        classify(logits, class_names=["a", "b", "c"])
