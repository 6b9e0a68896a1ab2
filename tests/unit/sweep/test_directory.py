"""A run directory belongs to one run and one process at a time."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from src.errors import ConfigError
from src.sweep.directory import HOLDS_A_RUN, claim_given, claim_new, slug

KEY = "hydra.run.dir"


def test_simultaneous_starts_get_different_directories(tmp_path: Path) -> None:
    """C03"""
    pattern = tmp_path / "outputs" / "12-00-00-run"
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: claim_new(pattern), range(8)))
    names = {claim.path.name for claim in claims}
    assert names == {"12-00-00-run", *(f"12-00-00-run-{n}" for n in range(1, 8))}
    for claim in claims:
        claim.release()


def test_a_second_launch_into_one_directory_stops(tmp_path: Path) -> None:
    """Fault 25"""
    path = tmp_path / "run é, =x"
    with claim_given(path, resuming=False, key=KEY):
        with pytest.raises(ConfigError, match=rf"is in use: process {os.getpid()}; choose another directory"):
            claim_given(path, resuming=True, key=KEY)
        with pytest.raises(ConfigError, match="in use"):
            claim_given(path, resuming=True, key=KEY)  # the first refusal did not spoil the lock
    claim_given(path, resuming=False, key=KEY).release()


@pytest.mark.parametrize("name", HOLDS_A_RUN)
def test_a_directory_with_a_run_is_only_for_resuming(tmp_path: Path, name: str) -> None:
    """C03"""
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=rf"{KEY}=.* already holds a run \({name}\); .* resume=auto"):
        claim_given(tmp_path, resuming=False, key=KEY)
    claim_given(tmp_path, resuming=True, key=KEY).release()  # also shows that the refusal let go of the lock


def test_an_existing_directory_without_a_run_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with claim_given(tmp_path, resuming=False, key=KEY) as claim:
        assert claim.path == tmp_path
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_place_that_cannot_be_created_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Fault 26, H07"""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/x")):
        with pytest.raises(ConfigError, match=rf"^{KEY}={path} (is not a directory|can't be created: .+)$"):
            claim_given(path, resuming=False, key=KEY)
    with pytest.raises(ConfigError, match=r"not a directory|can't be created"):
        claim_new(tmp_path / "file" / "run")
    with pytest.raises(ConfigError, match="can't be created"):
        claim_new(Path("/proc/outputs/run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_directory_is_refused(tmp_path: Path) -> None:
    """Fault 26"""
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"can't be written: Permission denied"):
        claim_given(tmp_path, resuming=False, key=KEY)
    with pytest.raises(ConfigError, match="can't be created"):
        claim_new(tmp_path / "outputs")


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 26, for root too: only the lock file can tell that an existing directory is read-only."""

    def read_only(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("builtins.open", read_only)
    with pytest.raises(ConfigError, match=r"can't be written: Read-only file system"):
        claim_given(tmp_path, resuming=False, key=KEY)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a b, c=d | é", "a-b-c-d-é"), ("resnet18-digits", "resnet18-digits"), ("???", "run"), (".hidden", "hidden"), ("é" * 100, "é" * 40)],
)
def test_a_name_becomes_one_path_component(name: str, expected: str) -> None:
    assert slug(name) == expected
