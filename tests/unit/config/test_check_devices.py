"""Processes, devices and the batch that divides over them."""

from dataclasses import replace
from typing import Any

import pytest

from src.config.check_devices import num_processes, num_replicas
from src.config.runfile import to_config

from .conftest import DDP, passes, refusal


@pytest.mark.parametrize(
    ("size", "processes", "accumulate", "text"),
    [
        (100, 8, 1, "train.batch_size=100 does not divide into parallel.num_processes=8 x train.accumulate=1; use 96 or 104"),
        (5, 2, 4, "train.batch_size=5 does not divide into parallel.num_processes=2 x train.accumulate=4; use 8"),
        (65, "auto", 1, "train.batch_size=65 does not divide into parallel.num_processes=2 x train.accumulate=1; use 64 or 66"),
    ],
)
def test_batch_size_divides_over_ranks(size: int, processes: Any, accumulate: int, text: str) -> None:
    train = {"batch_size": size, "accumulate": accumulate}
    assert refusal(parallel=DDP | {"num_processes": processes}, train=train) == text
    for working in [int(word) for word in text.rsplit("use ", 1)[1].split(" or ")]:
        passes(parallel=DDP | {"num_processes": processes}, train=train | {"batch_size": working})


def test_batch_size_divides_over_accumulation() -> None:
    assert refusal(train={"accumulate": 3}) == "train.batch_size=64 does not divide into train.accumulate=3; use 63 or 66"


def test_number_of_processes() -> None:
    ddp, single = to_config({"parallel": DDP}), to_config({})
    assert [num_processes(ddp, n) for n in (None, 0, 1, 4)] == [2, 2, 1, 4]
    assert num_processes(replace(ddp, device="cpu"), 4) == 2
    assert num_processes(to_config({"parallel": DDP | {"num_processes": 3}}), 4) == 3
    assert num_processes(single, 4) == 1
    assert "more than the visible GPUs: use at most 2" in refusal(2, parallel=DDP | {"num_processes": 4})
    passes(2, parallel=DDP | {"num_processes": 4}, device="cpu")


def test_devices() -> None:
    assert refusal(device="tpu") == "device=tpu must be auto, cpu, cuda or cuda:N"
    assert "needs a GPU and none is visible" in refusal(0, device="cuda")
    assert "use cuda:0 to cuda:1" in refusal(2, device="cuda:2")
    assert "takes one per rank" in refusal(2, device="cuda:1", parallel=DDP)
    passes(None, device="cuda:7")
    passes(2, device="cuda:1")
    for bad in ("cuda:", "cuda:-1", "cuda:01", "CPU", ""):
        assert refusal(2, device=bad).startswith(f"device={bad} must be")


def test_nccl_needs_gpus() -> None:
    assert "parallel.backend=nccl needs GPUs" in refusal(0, parallel=DDP | {"backend": "nccl"})
    assert "parallel.backend=nccl needs GPUs" in refusal(2, device="cpu", parallel=DDP | {"backend": "nccl"})
    passes(2, parallel=DDP | {"backend": "nccl"})
    passes(None, parallel=DDP | {"backend": "nccl"})


def test_dp_is_one_process_on_every_gpu() -> None:
    config = to_config({"parallel": {"name": "dp"}})
    assert [num_processes(config, n) for n in (None, 0, 1, 4)] == [1] * 4
    assert [num_replicas(config, n) for n in (None, 0, 1, 4)] == [1, 1, 1, 4]
    assert num_replicas(replace(config, device="cpu"), 4) == num_replicas(to_config({"parallel": DDP}), 4) == 1
    assert "parallel=dp takes all; use device=cuda" in refusal(2, device="cuda:1", parallel={"name": "dp"})
    expected = "train.batch_size=66 does not divide into 4 GPUs (parallel=dp) x train.accumulate=3; use 60 or 72"
    assert refusal(4, parallel={"name": "dp"}, train={"batch_size": 66, "accumulate": 3}) == expected
    passes(4, parallel={"name": "dp"}, train={"batch_size": 72, "accumulate": 3})


def test_fsdp_has_the_rules_of_a_group() -> None:
    config = to_config({"parallel": {"name": "fsdp"}})
    assert [num_processes(config, n) for n in (None, 0, 1, 4)] == [2, 2, 1, 4]
    assert "parallel.backend=nccl needs GPUs" in refusal(0, parallel={"name": "fsdp", "backend": "nccl"})
    assert "parallel.backend=gloo can't sum shares on GPUs" in refusal(2, parallel={"name": "fsdp", "backend": "gloo"})
    passes(2, parallel={"name": "fsdp", "backend": "gloo"}, device="cpu")
    assert "parallel.num_processes=3 x train.accumulate=1" in refusal(0, parallel={"name": "fsdp", "num_processes": 3})
