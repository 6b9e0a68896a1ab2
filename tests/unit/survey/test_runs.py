"""What is said of a run that the store calls RUNNING."""

import pytest

from src.launch.abandoned import Finding
from src.survey.runs import state
from src.tracking.mlflow_abandoned import OpenRun


@pytest.mark.parametrize(
    ("closed", "finding", "expected"),
    [
        ("KILLED", Finding(ended="KILLED"), "its process is gone: closed as KILLED"),
        (None, Finding(process="17"), "running, process 17"),
        (None, Finding(), "can't be judged from here: its directory is not on this machine"),
    ],
)
def test_each_state_in_words(closed, finding, expected):
    assert state(OpenRun("id", "name", "host", "/dir", closed), finding) == expected
