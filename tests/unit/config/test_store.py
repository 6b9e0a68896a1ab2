"""conf/ has one file for each option, typed by the option's dataclass."""

from collections.abc import Iterator

import pytest

from src.config.schema import OPTIONS
from src.config.store import CONF_DIR
from src.sweep.compose import Composer, session

CASES = [(group, name) for group, options in OPTIONS.items() for name in options]


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with session("config") as composer:
        yield composer


@pytest.mark.parametrize("group", OPTIONS)
def test_options_are_exactly_those_of_the_schema(group: str, composer: Composer) -> None:
    assert sorted(composer.options(group)) == sorted(OPTIONS[group])
    assert sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml")) == sorted(OPTIONS[group])


@pytest.mark.parametrize(("group", "name"), CASES)
def test_each_option_says_what_it_is(group: str, name: str) -> None:
    first = (CONF_DIR / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")


@pytest.mark.parametrize(("group", "name"), CASES)
def test_each_option_is_typed_by_its_dataclass_and_states_only_differences(group: str, name: str, composer: Composer) -> None:
    node = composer.compose([f"{group}={name}"]).node[group]
    kind = OPTIONS[group][name]
    assert node._metadata.object_type is kind
    assert node.name == name


@pytest.mark.parametrize("config_name", ["config", "evaluate"])
def test_hydra_leaves_directory_and_logging_alone(config_name: str) -> None:
    from hydra import compose

    with session(config_name):
        hydra = compose(config_name, return_hydra_config=True).hydra
    assert hydra.job.chdir is False
    assert hydra.job_logging.root is None
    assert hydra.hydra_logging.root is None
    assert hydra.job.name == {"config": "train"}.get(config_name, config_name)
