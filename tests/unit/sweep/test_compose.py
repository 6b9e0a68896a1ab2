"""What Hydra's own section is set to."""

import pytest
from hydra import compose

from src.sweep.compose import session


@pytest.mark.parametrize(("config_name", "job_name"), [("config", "train"), ("evaluate", "evaluate")])
def test_hydra_leaves_directory_and_logging_alone(config_name: str, job_name: str) -> None:
    """C04"""
    with session(config_name):
        hydra = compose(config_name, return_hydra_config=True).hydra
    assert hydra.job.chdir is False
    assert hydra.job_logging.root is None
    assert hydra.hydra_logging.root is None
    assert hydra.job.name == job_name
