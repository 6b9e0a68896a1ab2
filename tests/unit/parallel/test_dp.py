"""DataParallel where there is nothing to replicate, and the probe that keeps it from hanging."""

import logging
import subprocess
from threading import Thread

import pytest
import torch
from torch import nn

from src.config.schema import ParallelConfig, PrecisionConfig
from src.errors import ConfigError
from src.parallel import build_parallel, probe
from src.parallel.dp import DP, AutocastInside
from src.precision import build_precision
from src.runtime.rank import Rank

STUCK = """Timeout (0:00:15)!
Thread 0x00007f3 (most recent call first):
  File "/lib/torch/nn/parallel/comm.py", line 58 in broadcast_coalesced
  File "/lib/torch/nn/parallel/_functions.py", line 22 in forward
"""


def test_one_device_is_said_once_and_computes_as_single(caplog, fp32):
    mode = build_parallel(ParallelConfig(name="dp"), rank=Rank())
    assert type(mode) is DP
    with caplog.at_level(logging.INFO):
        mode.enter()
    assert [record.message for record in caplog.records] == [
        "parallel=dp: cpu is the only device, so this run computes as with parallel=single"
    ]
    model = nn.Linear(2, 2)
    assert mode.wrap(model, fp32) is model
    assert mode.num_replicas == 1


def test_a_replicas_thread_computes_in_the_modes_dtype():
    """A new thread forgets autocast: the region must be entered inside."""
    precision = build_precision(PrecisionConfig(name="bf16"), device=torch.device("cpu"))
    model = nn.Linear(4, 4)
    inside = AutocastInside(model, precision)
    found = {}

    def run(name, module):
        found[name] = module(torch.zeros(1, 4)).dtype

    with precision.autocast():
        for name, module in (("bare", model), ("inside", inside)):
            thread = Thread(target=run, args=(name, module))
            thread.start()
            thread.join()
    assert found == {"bare": torch.float32, "inside": torch.bfloat16}


def answer(monkeypatch, result):
    def run(command, **settings):
        assert command[-2:] == ["src.parallel.probe", "2"]
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(subprocess, "run", run)


def ended(code, stderr=""):
    return subprocess.CompletedProcess([], code, "", stderr)


def test_gpus_that_exchange_are_used(monkeypatch):
    answer(monkeypatch, ended(0))
    probe.refuse_stuck_replicas(2)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (subprocess.TimeoutExpired([], 75), r"no answer from 2 GPUs after 75 s"),
        (ended(1, STUCK), r"did not exchange a tiny network's weights within 15 s \(stuck in broadcast_coalesced\)"),
        (ended(1, "Traceback:\n  File x\nRuntimeError: peer access is not supported\n"), r": RuntimeError: peer access is not supported;"),
        (ended(-9), "the probe died without a word"),
    ],
)
def test_gpus_that_do_not_are_refused_with_the_reason_and_what_works(monkeypatch, result, reason):
    """Two GPUs once printed nothing for 100 seconds."""
    answer(monkeypatch, result)
    with pytest.raises(ConfigError, match=rf"(?s)^parallel=dp does not work on this machine.*{reason}.*use parallel=ddp"):
        probe.refuse_stuck_replicas(2)


def test_the_probe_needs_gpus():
    """Without them it fails, and its last line is the reason."""
    with pytest.raises((RuntimeError, AssertionError)):
        probe.replicate(2)
