"""Conversion agrees with OmegaConf wherever it accepts a value, and names what it wants where it doesn't."""

from dataclasses import dataclass, field
from typing import Any, Union

import pytest
from omegaconf import OmegaConf

from src.config.schema import Dtype
from src.config.values import convert, expected, literals, show
from src.errors import ConfigError


@dataclass
class Typed:
    integer: int = 0
    real: float = 0.0
    flag: bool = False
    text: str = ""
    maybe: int | None = None
    dtype: Dtype = Dtype.auto
    numbers: list[float] = field(default_factory=list)
    count: Union[int, str] = "auto"
    switch: Union[bool, str] = "auto"


ANNOTATIONS = {name: spec.type for name, spec in Typed.__dataclass_fields__.items()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("integer", 3),
        ("integer", "3"),
        ("real", 2),
        ("real", 1e-3),
        ("real", "1e-3"),
        ("flag", True),
        ("flag", "false"),
        ("text", 7),
        ("text", "a b"),
        ("maybe", None),
        ("maybe", 4),
        ("dtype", "bfloat16"),
        ("numbers", [1, 0.5]),
        ("count", 5),
        ("count", "auto"),
        ("switch", False),
        ("switch", "auto"),
    ],
)
def test_what_it_accepts_is_what_omegaconf_makes_of_it(name: str, value: Any) -> None:
    node = OmegaConf.structured(Typed)
    node[name] = value
    assert convert(value, ANNOTATIONS[name], path=name) == OmegaConf.to_container(node)[name]


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("integer", 1.5, "an integer"),
        ("integer", True, "an integer"),
        ("integer", None, "an integer"),
        ("real", "abc", "a float"),
        ("real", [1.0], "a float"),
        ("flag", 1, "true or false"),
        ("text", ["a"], "a string"),
        ("maybe", "x", "an integer or null"),
        ("dtype", "float17", "auto, float16 or bfloat16"),
        ("numbers", 1.0, "a list of floats"),
        ("numbers", ["x"], "a list of floats"),
        ("count", 1.5, "an integer or auto"),
        ("switch", 2, "true, false or auto"),
    ],
)
def test_a_wrong_type_names_key_value_and_what_is_expected(name: str, value: Any, wanted: str) -> None:
    """C09"""
    with pytest.raises(ConfigError) as caught:
        convert(value, ANNOTATIONS[name], path=f"a.{name}", words=("auto",) if name in ("count", "switch") else ())
    assert str(caught.value) == f"a.{name}={show(value)} is not {wanted}"


def test_a_mapping_stays_one() -> None:
    assert convert({"a": 1}, dict[str, Any], path="tags") == {"a": 1}
    with pytest.raises(ConfigError, match=r"^tags=\[a\] is not a mapping$"):
        convert(["a"], dict[str, Any], path="tags")


def test_values_are_shown_as_they_are_typed() -> None:
    assert show([1, None, True, Dtype.auto, {"a": "b"}]) == "[1,null,true,auto,{a:b}]"
    assert expected(int) == "an integer"


def test_limits_are_told_with_the_number_they_are_for() -> None:
    """C09"""
    assert expected(float, (), "above 0") == "a float (above 0)"
    assert expected(Union[int, str], ("auto",), "at least 2") == "an integer (at least 2) or auto"
    assert expected(int | None, (), "at least 1") == "an integer (at least 1) or null"
    with pytest.raises(ConfigError, match=r"^lr=abc is not a float \(above 0\)$"):
        convert("abc", float, path="lr", limits="above 0")


@pytest.mark.parametrize("annotation", [*ANNOTATIONS.values()])
def test_literals_are_accepted_by_the_conversion(annotation: Any) -> None:
    for text in literals(annotation):
        convert(None if text == "null" else text, annotation, path="x")


def test_literals_are_what_can_be_listed() -> None:
    assert literals(Dtype) == ["auto", "float16", "bfloat16"]
    assert literals(Union[bool, str], ("auto",)) == ["true", "false", "auto"]
    assert literals(int | None) == ["null"]
    assert literals(float) == []
