"""Who a process is, from torchrun's variables."""

import os

import pytest
import torch

from src.runtime import rank as ranks
from src.runtime.rank import Rank

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No variable of this test run, and its threads given back."""
    threads = torch.get_num_threads()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    torch.set_num_threads(threads)


def test_outside_torchrun_a_process_is_alone():
    found = ranks.from_environment("cpu")
    assert found == Rank()
    assert (found.rank, found.world_size, found.is_main, found.device) == (0, 1, True, torch.device("cpu"))


def test_torchruns_variables_are_read(monkeypatch):
    """Two machines: the rank is not the local one."""
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    found = ranks.from_environment("cpu")
    assert found == Rank(rank=5, world_size=8, local_rank=1, local_world_size=4, device=torch.device("cpu"))
    assert not found.is_main


@pytest.mark.parametrize(
    ("word", "available", "expected"),
    [
        ("cpu", True, "cpu"),
        ("auto", False, "cpu"),
        ("auto", True, "cuda:2"),
        ("cuda", True, "cuda:2"),
        ("cuda:1", True, "cuda:1"),
        ("cuda", False, "cuda:2"),  # not quietly the CPU: torch says what is missing
    ],
)
def test_the_device_behind_the_word(monkeypatch, word, available, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert ranks.from_environment(word).device == torch.device(expected)


@pytest.mark.parametrize(
    ("omp", "torchrun", "local_world_size", "expected"),
    [
        (None, False, 1, 12),
        (None, False, 2, 6),
        (None, False, 5, 2),
        (None, False, 100, 1),
        ("3", False, 1, 3),
        ("3,1", False, 1, 3),
        ("1", False, 1, 1),
        ("1", True, 2, 1),
        ("4", True, 2, 4),
        ("", False, 2, 6),
        ("many", False, 2, 6),
        ("0", False, 2, 1),
    ],
)
def test_cores_are_shared_unless_somebody_wishes_otherwise(monkeypatch, omp, torchrun, local_world_size, expected):
    monkeypatch.setattr(ranks, "num_cores", lambda: 12)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    if torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert ranks.use_threads(local_world_size) == torch.get_num_threads() == expected


def test_cores_are_those_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 9}, raising=False)
    assert ranks.num_cores() == 3
    assert ranks.device_name(torch.device("cpu")).endswith("(3 cores)")


def test_a_rank_can_not_be_changed():
    with pytest.raises(AttributeError):
        Rank().rank = 1
