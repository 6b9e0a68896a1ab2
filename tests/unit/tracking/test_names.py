"""Names and values against MLflow's own validation."""

import string

import pytest
from mlflow.utils import validation

from src.tracking import names

AWKWARD = [
    "acc@1", "acc@5", "timing(s)", "transforms[0].size", "a,b", "a;b", "a=b", "100%", "loss#2", "a:b", "", " ", ".", "..", "../x",
    "../../evil", "/abs", "a//b", "a/../b", "a/./b", "a/", "..a/b", "é", "名前", "a\nb", "a\n", "x" * 251,
    "x" * 252, "y" * 250 + "@", "/" * 300,
]  # fmt: skip


@pytest.mark.parametrize("name", AWKWARD)
def test_cleaned_names_pass_mlflow(name: str) -> None:
    """D04, I10: MLflow's validators are the oracle."""
    clean = names.clean_name(name)
    validation._validate_metric_name(clean)
    validation._validate_param(clean, "1")
    validation._validate_tag(clean, "1")
    assert len(clean) <= validation.MAX_ENTITY_KEY_LENGTH


def test_cleaned_names_stay_distinct_and_the_same() -> None:
    """D04: 'a,b' and 'a;b' and the like don't fall together."""
    cleaned = [names.clean_name(name) for name in AWKWARD]
    assert len(set(cleaned)) == len(AWKWARD)
    assert cleaned == [names.clean_name(name) for name in AWKWARD]


@pytest.mark.parametrize("name", ["train/loss", "optim.lr", "perf/peak_memory_gib", "mlflow.parentRunId", "a b-c", "x" * 250])
def test_good_names_stay(name: str) -> None:
    assert names.clean_name(name) == name


@pytest.mark.parametrize("name", [*AWKWARD, "a/b", "a_b"])
def test_file_name_is_one_safe_component(name: str) -> None:
    """I10: no experiment name leads out of the artifact folder."""
    component = names.file_name(name)
    assert set(component) <= set(string.ascii_letters + string.digits + "_.- ")
    assert component not in ("", ".", "..")
    assert len(component) <= 255


def test_file_names_stay_distinct() -> None:
    assert len({names.file_name(name) for name in ("a/b", "a_b", "a:b", "a//b")}) == 4


def test_limits_are_mlflows() -> None:
    assert names.MAX_NAME == validation.MAX_ENTITY_KEY_LENGTH
    assert names.MAX_PARAM_VALUE == validation.MAX_PARAM_VAL_LENGTH
    assert names.MAX_TAG_VALUE == validation.MAX_TAG_VAL_LENGTH


def test_long_values_are_shortened_visibly_and_tell_apart() -> None:
    """D02: 7000 characters fit, marked, and two values with the same beginning differ."""
    one, two = names.shorten("x" * 7000, 6000), names.shorten("x" * 6999 + "y", 6000)
    assert len(one) == len(two) == 6000
    assert one != two
    assert one.startswith("x" * 5000)
    assert "7000 characters" in one[-100:]
    assert names.shorten("x" * 6000, 6000) == "x" * 6000


def test_params_read_as_in_yaml() -> None:
    params = names.param_texts({"a": None, "b": True, "c": 0.1, "d": 3, "e": "x", "f[0]": False})
    assert list(params.values()) == ["null", "true", "0.1", "3", "x", "false"]
    assert "f[0]" not in params
