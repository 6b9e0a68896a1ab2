"""A config that a rule refuses, or lets through."""

from typing import Any

import pytest

from src.config.checks import check
from src.config.runfile import to_config
from src.errors import ConfigError

DDP = {"name": "ddp"}


def refusal(cuda_devices: int | None = 0, **data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check(to_config(data), cuda_devices=cuda_devices)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def passes(cuda_devices: int | None = 0, **data: Any) -> None:
    check(to_config(data), cuda_devices=cuda_devices)
