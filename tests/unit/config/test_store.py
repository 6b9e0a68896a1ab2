"""conf/ has one file for each option, typed by the option's dataclass."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from src.config.docs import CONF_DIR, about_option
from src.config.schema import OPTIONS
from src.sweep.compose import Composer, session


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with session("config") as composer:
        yield composer


@pytest.mark.parametrize("group", OPTIONS)
def test_options_are_exactly_those_of_the_schema(group: str, composer: Composer) -> None:
    assert sorted(composer.options(group)) == sorted(OPTIONS[group])


@pytest.mark.parametrize("path", sorted(CONF_DIR.rglob("*.yaml")), ids=lambda path: path.stem)
def test_each_file_says_first_what_it_is(path: Path) -> None:
    about = about_option(*path.relative_to(CONF_DIR).with_suffix("").as_posix().rpartition("/")[::2])
    assert about.endswith(".")


@pytest.mark.parametrize("turn", range(max(map(len, OPTIONS.values()))))
def test_each_option_is_typed_by_its_own_dataclass(turn: int, composer: Composer) -> None:
    names = {group: list(options)[turn % len(options)] for group, options in OPTIONS.items()}
    node = composer.compose([f"{group}={name}" for group, name in names.items()]).node
    for group, name in names.items():
        assert node[group].name == name
        assert node[group]._metadata.object_type is OPTIONS[group][name]
