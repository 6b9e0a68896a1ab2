"""conf/ has one file for each option, typed by the option's dataclass."""

from collections.abc import Iterator

import pytest

from src.config.schema import OPTIONS
from src.config.store import CONF_DIR
from src.sweep.compose import Composer, session


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with session("config") as composer:
        yield composer


@pytest.mark.parametrize("group", OPTIONS)
def test_options_are_exactly_those_of_the_schema(group: str, composer: Composer) -> None:
    assert sorted(composer.options(group)) == sorted(OPTIONS[group])


@pytest.mark.parametrize("path", sorted(CONF_DIR.rglob("*.yaml")), ids=lambda path: path.stem)
def test_each_file_says_first_what_it_is(path: object) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]  # type: ignore[attr-defined]
    assert first.startswith("# ")
    assert first.endswith(".")


@pytest.mark.parametrize("turn", range(max(map(len, OPTIONS.values()))))
def test_each_option_is_typed_by_its_own_dataclass(turn: int, composer: Composer) -> None:
    names = {group: list(options)[turn % len(options)] for group, options in OPTIONS.items()}
    node = composer.compose([f"{group}={name}" for group, name in names.items()]).node
    for group, name in names.items():
        assert node[group].name == name
        assert node[group]._metadata.object_type is OPTIONS[group][name]
