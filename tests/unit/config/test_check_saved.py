"""Rules of the commands that start from a checkpoint."""

import os
import sys

import pytest

from src.config.check_saved import EXPORT_FORMATS, check_saved, refuse_existing
from src.config.runfile import to_config
from src.config.schema import EvaluateConfig, ExportConfig, PredictConfig
from src.errors import ConfigError

OWN_DATA = {"data": {"name": "custom", "factory": "my.sets:load"}}


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (EvaluateConfig, {"resume": "auto"}, "resume=auto has no meaning here; name the model by checkpoint=PATH"),
        (PredictConfig, {}, "predict.input is not set"),
        (PredictConfig, {"predict": {"input": ""}}, "predict.input is not set"),
        (PredictConfig, {"predict": {"input": "x", "output": "a.parquet"}}, r"predict.output=a.parquet must end in .csv or .jsonl"),
        (PredictConfig, {"predict": {"input": "x", "output": ".jsonl"}}, r"predict.output=.jsonl must end in .csv or .jsonl, after a name"),
        (PredictConfig, {"predict": {"input": "x", "output": "metrics.jsonl"}}, "is a file of the run directory's own"),
        (PredictConfig, {"predict": {"input": "x", "output": "é" * 126 + ".csv"}}, "a longer name than the 255 bytes"),
        (ExportConfig, {"export": {"formats": []}}, r"export.formats=\[\] must be some of onnx, pt2, safetensors"),
        (ExportConfig, {"export": {"formats": ["pt2", "tflite"]}}, r"export.formats=\[pt2,tflite\] must be some of"),
        (ExportConfig, {"parallel": {"name": "ddp"}}, "parallel=ddp: an export is the work of one process"),
        (ExportConfig, OWN_DATA, "data.factory=my.sets:load is code that the checkpoint names; add trust_code=true"),
    ],
)
def test_what_is_refused(kind, data, text):
    with pytest.raises(ConfigError, match=text):
        check_saved(to_config(data, kind))


def test_a_name_may_be_as_long_as_a_file_system_allows():
    check_saved(to_config({"predict": {"input": "folder", "output": "a" * 251 + ".csv"}}, PredictConfig))


def test_predictions_need_no_code_of_the_data():
    check_saved(to_config(OWN_DATA | {"predict": {"input": "folder"}}, PredictConfig))


@pytest.mark.parametrize("package", EXPORT_FORMATS["onnx"])
def test_onnx_without_its_packages_says_how_to_get_them(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"onnx needs .*{package}.*; pip install -e '.\[export\]', or leave onnx out"):
        check_saved(to_config({}, ExportConfig))
    check_saved(to_config({"export": {"formats": ["pt2", "safetensors"]}}, ExportConfig))


def test_a_table_is_only_written_where_nothing_is(tmp_path):
    refuse_existing(tmp_path / "new.csv")
    (tmp_path / "old.csv").write_text("mine")
    with pytest.raises(ConfigError, match=r"old\.csv exists; nothing is overwritten"):
        refuse_existing(tmp_path / "old.csv")
    (tmp_path / "link.csv").symlink_to("gone.csv")
    with pytest.raises(ConfigError, match=r"link\.csv exists"):
        refuse_existing(tmp_path / "link.csv")
    with pytest.raises(ConfigError, match="there is no folder"):
        refuse_existing(tmp_path / "nowhere/new.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="every folder is open to root")
def test_a_folder_that_is_closed_to_us_is_found_out_first(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(ConfigError, match="can't be written to; give another folder"):
        refuse_existing(tmp_path / "new.csv")
