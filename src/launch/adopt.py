"""Ranks that somebody else's torchrun started: rank 0 plays the launcher, the others do what it tells them through torchrun's store."""

import json
import os
import platform
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from src.config import runfile
from src.config.schema import JOBS, Config, GroupConfig
from src.errors import ConfigError, RankLostError
from src.launch import outcome as outcomes
from src.launch.card import failure_card
from src.launch.devices import visible_cuda_devices
from src.launch.environment import set_library_variables
from src.launch.heartbeat import heartbeat_file
from src.launch.outcome import Outcome, a_peer_failed
from src.launch.signals import StopSignals
from src.runtime import parent

ConfigT = TypeVar("ConfigT", bound=Config)

DISMISS_SECONDS = 15.0
"""Longest wait until every rank knows that there is nothing to do; they import torch meanwhile."""
LAST_WORD_SECONDS = 5.0
"""How long rank 0, once it has failed or been stopped, waits for the others: theirs may be the cause, or they hang until it ends."""


@dataclass(frozen=True)
class Torchrun:
    """This process's place in the group of an outer torchrun."""

    rank: int
    world_size: int
    local_world_size: int
    attempt: str


def outer() -> Torchrun | None:
    """The torchrun that started this process as one of its ranks, if one did."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    rank, world_size, local_world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return Torchrun(rank, world_size, local_world_size, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def together(command: Callable[[], int]) -> int:
    """Run ``command`` and return its exit code; under an outer torchrun in rank 0 only, whose orders the other ranks follow."""
    place = outer()
    if place is None or place.world_size == 1:
        return command()
    code = follow(place) if place.rank else command()
    if not place.rank:
        dismiss(place, code)
    from src.worker import leave

    leave(code)


def as_started(config: ConfigT) -> ConfigT:
    """``config`` with the number of ranks that an outer torchrun has started, if there is one.

    Raises:
        ConfigError: the config asks for another number of ranks.
    """
    place = outer()
    if place is None:
        return config
    parallel = config.parallel
    if not isinstance(parallel, GroupConfig):
        if place.world_size > 1:
            raise ConfigError(
                f"parallel={parallel.name} is one process, but torchrun started {place.world_size}; use parallel=ddp, or leave torchrun out"
            )
        return config
    if parallel.num_processes not in ("auto", place.world_size):
        raise ConfigError(
            f"parallel.num_processes={parallel.num_processes} but torchrun started {place.world_size} ranks; leave it out, and choose "
            "the number by torchrun's --nproc-per-node and --nnodes"
        )
    return replace(config, parallel=replace(parallel, num_processes=place.world_size))


def num_cuda_devices() -> int:
    """GPUs that the ranks of a run may use: this machine's, and as many on each other machine of an outer torchrun."""
    place = outer()
    return visible_cuda_devices() * (1 if place is None else place.world_size // place.local_world_size)


def refuse_sweep() -> None:
    """Raise ``ConfigError`` under torchrun: its ranks are one group for one run, and every job of a sweep starts its own."""
    if outer() is not None:
        raise ConfigError("torchrun starts the ranks of a single run, but -m asks for several; type python -m ... -m without torchrun")


@cache
def connect(place: Torchrun) -> Any:
    """The store at MASTER_ADDR:MASTER_PORT, through which torchrun's ranks find each other; kept open, since rank 0 may host it."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://"))
    return PrefixStore(f"halfstep/{place.attempt}", store)


def follow(place: Torchrun) -> int:
    """Wait for the order of rank 0 and carry it out; returns the exit code. Nothing is checked, printed or created before."""
    parent.die_with(os.getppid())
    set_library_variables(deterministic=False)  # before torch is imported
    store = connect(place)
    order = json.loads(store.get("order"))
    store.set(f"heard/{place.rank}", json.dumps([platform.node(), os.getpid()]))
    if "config" not in order:
        _ignore_sigterm()
        return int(order["exit_code"])
    run_dir = Path(order["run_dir"])
    with StopSignals(peer_failed=lambda: a_peer_failed(run_dir, rank=place.rank)) as signals:
        from src.runtime import logs

        config = runfile.to_config(yaml.safe_load(order["config"]), JOBS[order["job"]])
        set_library_variables(deterministic=config.deterministic)
        logs.set_up(on_console=False)
        return int(_share(config, run_dir=run_dir, signals=signals).exit_code)


def dismiss(place: Torchrun, code: int) -> None:
    """Tell the other ranks to end with ``code``, unless they have had an order."""
    with suppress(RuntimeError):  # they, or the store, are gone already
        store = connect(place)
        store.compare_set("order", "", json.dumps({"exit_code": code}))
        store.wait([f"heard/{rank}" for rank in range(1, place.world_size)], timedelta(seconds=DISMISS_SECONDS))
    _ignore_sigterm()


def _ignore_sigterm() -> None:
    # When one rank has ended, torchrun ends the others: they are about to, with an exit code of their own.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def lead(place: Torchrun, config: Config, *, job: str, run_dir: Path, ready: Callable[[], None], signals: StopSignals) -> Outcome:
    """Send the content of ``run.yaml`` to the other ranks, do rank 0's share after ``ready()``, and tell how the group ended."""
    assert isinstance(config.parallel, GroupConfig)
    parent.die_with(os.getppid())
    store = connect(place)
    text = (run_dir / "run.yaml").read_text(encoding="utf-8")
    store.set("order", json.dumps({"job": job, "run_dir": str(run_dir), "config": text}))
    ready()
    own = _share(config, run_dir=run_dir, signals=signals)
    signals.closing = True  # torchrun ends this rank because another one failed, whose cause is to be written down first
    seconds = config.parallel.grace_seconds if own.status == "FINISHED" else LAST_WORD_SECONDS
    gone = _wait_for_others(store, place, run_dir=run_dir, seconds=seconds)
    outcome = outcomes.combine(run_dir, place.world_size, exit_codes={})
    if gone is not None:
        outcome = Outcome(rank=gone, result=own.result)
        where = outcomes.rank_log(run_dir, gone)
        outcome.blame(RankLostError(f"rank {gone} is gone without a word; torchrun's report names its signal, and its log is {where}"))
    outcome.failure = failure_card(outcome, run_dir=run_dir)
    for rank in range(place.world_size):
        heartbeat_file(run_dir, rank).unlink(missing_ok=True)
    return outcome


def _share(config: Config, *, run_dir: Path, signals: StopSignals) -> Outcome:
    from src import work
    from src.runtime import rank as ranks

    return work.run_rank(config, run_dir=run_dir, rank=ranks.from_environment(config.device), signals=signals)


def _wait_for_others(store: Any, place: Torchrun, *, run_dir: Path, seconds: float) -> int | None:
    """Wait for the outcome of every other rank, ``seconds`` at most; returns one that died without any, as far as can be seen."""
    deadline = time.monotonic() + seconds
    pending = list(range(1, place.world_size))
    while pending and time.monotonic() < deadline:
        gone = [rank for rank in pending if store.check([f"heard/{rank}"]) and not _alive(*json.loads(store.get(f"heard/{rank}")))]
        pending = [rank for rank in pending if outcomes.read(run_dir, rank) is None]
        for rank in gone:
            if rank in pending:
                return rank
        time.sleep(0.05)
    return None


def _alive(host: str, process: int) -> bool:
    """Whether a process runs; on another machine that can't be known, and it counts as alive."""
    import psutil

    if host != platform.node():
        return True
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
