"""Strict JSON, whole or absent."""

import json
import math
import os

import pytest

from src.errors import ExitCode
from src.launch.environment import environment_restored
from src.launch.files import write_json


def strict(text):
    """Parse JSON as a strict parser would, without NaN and Infinity."""

    def refuse(name):
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def test_what_json_has_no_word_for_becomes_null(tmp_path):
    content = {"a": math.nan, "b": [math.inf, 1.5, (-math.inf, {"c": math.nan})], 3: True, "code": ExitCode.DATA, "é": "日本"}
    write_json(tmp_path / "deep" / "x.json", content)
    text = (tmp_path / "deep" / "x.json").read_text(encoding="utf-8")
    assert strict(text) == {"a": None, "b": [None, 1.5, [None, {"c": None}]], "3": True, "code": 3, "é": "日本"}
    assert "日本" in text


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert os.listdir(tmp_path) == ["x.json"]

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"new": 1})
    assert json.loads(path.read_text()) == {"old": 1}


def test_the_environment_comes_back(monkeypatch):
    monkeypatch.setenv("HALFSTEP_TEST_KEPT", "1")
    monkeypatch.setenv("HALFSTEP_TEST_LOST", "2")
    before = dict(os.environ)

    def change_and_fail():
        os.environ |= {"HALFSTEP_TEST_KEPT": "9", "HALFSTEP_TEST_NEW": "3"}
        del os.environ["HALFSTEP_TEST_LOST"]
        raise RuntimeError

    with pytest.raises(RuntimeError), environment_restored():
        change_and_fail()
    assert dict(os.environ) == before
