"""Ranks of an outer torchrun, without one: its variables are set here, and an in-memory store stands for its rendezvous."""

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from src.config import runfile
from src.config.runfile import to_config
from src.config.schema import Config, DDPConfig, EvaluateConfig
from src.errors import ConfigError, DataError
from src.launch import adopt
from src.launch.adopt import Torchrun
from src.launch.outcome import Outcome
from src.launch.signals import StopSignals

NO_PROCESS = 2**30
"""No process of this machine has this number."""
NAME = "a b, c=d | é"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(adopt.parent, "die_with", lambda process: None)  # this process is to survive its parent
    monkeypatch.setattr(adopt.signal, "signal", lambda *args: None)


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Torchrun]:
    def set_variables(rank: int, world_size: int, local_world_size: int) -> Torchrun:
        values = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": local_world_size}
        for name, value in ({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2"} | values).items():
            monkeypatch.setenv(name, str(value))
        place = adopt.outer()
        assert place is not None
        return place

    return set_variables


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    store = HashStore()
    monkeypatch.setattr(adopt, "connect", lambda place: store)
    return store


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, Path]]:
    """What ranks were asked to do; they do it at once."""
    asked: list[tuple[Config, Path]] = []

    def share(config: Config, *, run_dir: Path, signals: StopSignals) -> Outcome:
        asked.append((config, run_dir))
        return Outcome(exit_code=4)

    monkeypatch.setattr(adopt, "_share", share)
    return asked


def test_a_process_of_its_own_is_nobodys_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK alone is no torchrun: Kubernetes sets it for machines."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert adopt.outer() is None
    assert adopt.together(lambda: 5) == 5
    assert adopt.as_started(Config()) == Config()
    adopt.refuse_sweep()


def test_the_place_of_a_rank_is_torchruns(torchrun: Callable[..., Torchrun]) -> None:
    assert torchrun(3, 4, 2) == Torchrun(rank=3, world_size=4, local_world_size=2, attempt="2")


@pytest.mark.parametrize("wish", ["auto", 4])
def test_the_number_of_ranks_is_torchruns(torchrun: Callable[..., Torchrun], wish: str | int) -> None:
    torchrun(0, 4, 2)
    started = adopt.as_started(Config(parallel=DDPConfig(num_processes=wish, timeout_seconds=7)))
    assert started.parallel == DDPConfig(num_processes=4, timeout_seconds=7)


def test_another_number_of_ranks_is_refused(torchrun: Callable[..., Torchrun]) -> None:
    torchrun(0, 4, 2)
    with pytest.raises(ConfigError, match=r"parallel\.num_processes=2 but torchrun started 4 ranks"):
        adopt.as_started(Config(parallel=DDPConfig(num_processes=2)))
    with pytest.raises(ConfigError, match="parallel=single is one process, but torchrun started 4; use parallel=ddp"):
        adopt.as_started(Config())
    with pytest.raises(ConfigError, match="without torchrun"):
        adopt.refuse_sweep()


def test_a_torchrun_of_one_rank_runs_single(torchrun: Callable[..., Torchrun]) -> None:
    torchrun(0, 1, 1)
    assert adopt.as_started(Config()) == Config()
    assert adopt.together(lambda: 5) == 5


def test_every_machine_has_its_gpus(torchrun: Callable[..., Torchrun], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "visible_cuda_devices", lambda: 2)
    assert adopt.num_cuda_devices() == 2
    torchrun(0, 6, 2)
    assert adopt.num_cuda_devices() == 6


@pytest.mark.parametrize(
    ("job", "config"),
    [
        ("train", to_config({"name": NAME, "parallel": {"name": "ddp"}})),
        ("evaluate", to_config({"checkpoint": NAME, "parallel": {"name": "ddp"}}, EvaluateConfig)),
    ],
)
def test_a_rank_gets_the_config_byte_for_byte(
    torchrun: Callable[..., Torchrun], store: HashStore, shares: list[tuple[Config, Path]], tmp_path: Path, job: str, config: Config
) -> None:
    """C06: what rank 0 sends is what the others run, whatever is in it."""
    run_dir = tmp_path / NAME
    run_dir.mkdir()
    runfile.save(config, run_dir / "run.yaml")
    store.set("order", json.dumps({"job": job, "run_dir": str(run_dir), "config": (run_dir / "run.yaml").read_text(encoding="utf-8")}))
    assert adopt.follow(torchrun(1, 2, 2)) == 4
    assert shares == [(config, run_dir)]
    assert json.loads(store.get("heard/1")) == [platform.node(), os.getpid()]


def test_a_dismissed_rank_ends_with_the_code_of_rank_0(torchrun: Callable[..., Torchrun], store: HashStore, shares: list[Any]) -> None:
    store.set("heard/1", "")
    adopt.dismiss(torchrun(0, 2, 2), 2)
    assert adopt.follow(torchrun(1, 2, 2)) == 2
    assert not shares


def test_who_has_an_order_is_not_dismissed(torchrun: Callable[..., Torchrun], store: HashStore) -> None:
    store.set("order", "run")
    store.set("heard/1", "")
    adopt.dismiss(torchrun(0, 2, 2), 2)
    assert store.get("order") == b"run"


class TestRankZero:
    """``lead`` with a rank 1 that ends as each test says."""

    @pytest.fixture
    def lead(
        self, torchrun: Callable[..., Torchrun], store: HashStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., Outcome]:
        monkeypatch.setattr(adopt, "LAST_WORD_SECONDS", 0.3)
        config = to_config({"parallel": {"name": "ddp", "grace_seconds": 1}})
        runfile.save(config, tmp_path / "run.yaml")

        def lead(own: Outcome, other: Outcome | None, *, process: int = os.getpid()) -> Outcome:
            def share(config: Config, *, run_dir: Path, signals: StopSignals) -> Outcome:
                own.write(run_dir)
                if other is not None:
                    other.write(run_dir)
                return own

            monkeypatch.setattr(adopt, "_share", share)
            store.set("heard/1", json.dumps([platform.node(), process]))
            done: list[str] = []
            signals = StopSignals()
            outcome = adopt.lead(
                torchrun(0, 2, 2), config, job="train", run_dir=tmp_path, ready=lambda: done.append("ready"), signals=signals
            )
            assert done == ["ready"]
            assert signals.closing
            assert runfile.to_config(runfile.yaml.safe_load(json.loads(store.get("order"))["config"])) == config
            return outcome

        return lead

    def test_all_finished(self, lead: Callable[..., Outcome]) -> None:
        outcome = lead(Outcome(result={"steps": 8}), Outcome(rank=1))
        assert (outcome.status, outcome.result) == ("FINISHED", {"steps": 8})

    def test_a_rank_without_a_word_is_the_cause(self, lead: Callable[..., Outcome]) -> None:
        """FAULTS row 1: rank 0 sees only a broken connection."""
        own = Outcome(result={"steps": 3})
        own.blame(RuntimeError("Connection closed by peer"))
        outcome = lead(own, None, process=NO_PROCESS)
        assert (outcome.status, outcome.exit_code, outcome.rank, outcome.result) == ("FAILED", 6, 1, {"steps": 3})
        assert "rank 1 is gone" in str(outcome.reason)
        assert outcome.failure is not None
        assert outcome.failure["rank"] == 1

    def test_the_first_failure_is_the_cause(self, lead: Callable[..., Outcome]) -> None:
        """FAULTS row 3."""
        other, own = Outcome(rank=1), Outcome()
        other.blame(DataError("image.jpg is broken"))
        own.blame(RuntimeError("Connection closed by peer"))
        outcome = lead(own, other)
        assert (outcome.exit_code, outcome.reason, outcome.rank) == (3, "image.jpg is broken", 1)

    def test_a_failed_rank_0_does_not_wait_for_ranks_that_wait_for_it(self, lead: Callable[..., Outcome]) -> None:
        own = Outcome()
        own.blame(DataError("image.jpg is broken"))
        outcome = lead(own, None)
        assert (outcome.exit_code, outcome.rank) == (3, 0)
