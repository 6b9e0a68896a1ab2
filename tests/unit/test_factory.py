"""Functions named on the command line."""

import sys
from pathlib import Path

import pytest

from src.errors import ConfigError
from src.factory import call_factory, import_factory

KEY = "data.factory"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module of a fresh name into the current directory; returns that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    def module(text: str, *, package: str = "") -> str:
        directory = tmp_path / package
        directory.mkdir(exist_ok=True)
        name = f"m{len(list(directory.glob('*.py')))}_{tmp_path.name}"
        (directory / f"{name}.py").write_text(text)
        return f"{package}.{name}" if package else name

    return module


def test_the_current_directory_is_importable(write):
    assert import_factory(f"{write('def f(): return 5')}:f", key=KEY)() == 5


def test_packages_are_importable(write, tmp_path):
    name = write("def f(): return 6", package=f"p_{tmp_path.name}")
    assert import_factory(f"{name}:f", key=KEY)() == 6
    assert import_factory("collections:OrderedDict", key=KEY)() == {}


@pytest.mark.parametrize("path", [None, ""])
def test_it_must_be_set(path):
    with pytest.raises(ConfigError, match=r"data\.factory is not set; name your function: data\.factory=package\.module:function"):
        import_factory(path, key=KEY)


@pytest.mark.parametrize("path", ["f", "m.f", ":f", "m:", "m:f:g", "../m:f", "m.:f", "m:f()", "a b:f", "m.py:f g"])
def test_the_form_is_checked(path):
    with pytest.raises(ConfigError, match=r"is not of the form package\.module:function"):
        import_factory(path, key=KEY)


@pytest.mark.parametrize("module", ["nowhere_to_be_found", "nowhere_to_be_found.inner", "collections.nowhere", "sys.nowhere"])
def test_a_missing_module_is_named(module):
    with pytest.raises(ConfigError, match=rf"data\.factory={module}:f: there is no module \S*nowhere"):
        import_factory(f"{module}:f", key=KEY)


def test_a_missing_or_wrong_attribute_is_named(write):
    name = write("def build_it(): ...\nNUMBER = 3")
    with pytest.raises(ConfigError, match=f"has no build_i; did you mean {name}:build_it"):
        import_factory(f"{name}:build_i", key=KEY)
    with pytest.raises(ConfigError, match="has no zzz; name one of its functions"):
        import_factory(f"{name}:zzz", key=KEY)
    with pytest.raises(ConfigError, match="is a int, not a function"):
        import_factory(f"{name}:NUMBER", key=KEY)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import nothing_like_that", ModuleNotFoundError),
        ("1 / 0", ZeroDivisionError),
        ("def f(:", SyntaxError),
        ("raise ImportError('x')", ImportError),
    ],
)
def test_what_the_users_module_raises_comes_as_it_is(write, text, error):
    """A missing dependency of the module is not a missing module."""
    with pytest.raises(error):
        import_factory(f"{write(text)}:f", key=KEY)


def test_offers_are_taken_by_name():
    def function(a, *, b=0, **rest):
        return a, b, rest

    assert call_factory(function, offered={"a": 1, "c": 3}, kwargs={"d": 4}, key="data.kwargs") == (1, 0, {"d": 4})
    assert call_factory(lambda: 5, offered={"a": 1}, kwargs={}, key="data.kwargs") == 5


def test_arguments_that_do_not_fit():
    with pytest.raises(
        ConfigError, match=r"data\.kwargs does not fit \S*<lambda>\(x\): missing a required argument: 'x'; .*\+data\.kwargs\.NAME="
    ):
        call_factory(lambda x: x, offered={"a": 1}, kwargs={}, key="data.kwargs")
    with pytest.raises(ConfigError, match=r"data\.kwargs\.a=2 is passed by this program already; leave it out"):
        call_factory(lambda a: a, offered={"a": 1}, kwargs={"a": 2}, key="data.kwargs")
