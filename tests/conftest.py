"""Shared by all tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def few_threads() -> None:
    """Two test processes share two cores."""
    torch.set_num_threads(1)
