"""Which store a run goes to."""

from pathlib import Path

import pytest

from src.errors import ConfigError
from src.tracking.uri import artifact_location, resolve_uri, sqlite_path

ROOT = Path("/project")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_default_is_one_file_at_the_root_from_anywhere() -> None:
    """D13."""
    assert resolve_uri(None, env=None, root=ROOT) == "sqlite:////project/mlflow.db"
    assert resolve_uri(None, env="", root=ROOT) == "sqlite:////project/mlflow.db"


def test_config_goes_before_environment() -> None:
    assert resolve_uri("http://a:5000", env="http://b:5000", root=ROOT) == "http://a:5000"
    assert resolve_uri(None, env="http://b:5000", root=ROOT) == "http://b:5000"


@pytest.mark.parametrize("text", ["sqlite:///runs/a.db", "runs/a.db", "./runs/a.db", "sqlite:///./runs/a.db"])
def test_relative_files_count_from_where_the_command_is_typed(text: str, tmp_path: Path) -> None:
    """D13: an absolute address, so that a later change of folder doesn't matter."""
    path = sqlite_path(resolve_uri(text, env=None, root=ROOT))
    assert path is not None
    assert path.is_absolute()
    assert path.resolve() == (tmp_path / "runs" / "a.db").resolve()


@pytest.mark.parametrize("text", ["postgresql://u:p@h/db", "mysql+pymysql://h/db", "https://h", "databricks", "databricks://profile"])
def test_servers_stay(text: str) -> None:
    assert resolve_uri(text, env=None, root=ROOT) == text
    assert sqlite_path(text) is None


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("mlruns", "sqlite:///"),
        ("/data/mlruns", "sqlite:////data/mlruns/mlflow.db"),
        ("file:///data/my%20runs", "sqlite:////data/my runs/mlflow.db"),
        ("sqlite://", "sqlite:///FILE"),
        ("sqlite:///:memory:", "sqlite:///FILE"),
        ("htp://host", "http"),
        ("ftp://host/x.db", "http"),
    ],
)
def test_refusals_name_key_value_and_fix(text: str, fix: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve_uri(text, env=None, root=ROOT)
    assert f"tracking.uri={text}" in str(raised.value)
    assert fix in str(raised.value)
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI="):
        resolve_uri(None, env=text, root=ROOT)


def test_query_of_a_sqlite_address_is_kept() -> None:
    uri = resolve_uri("sqlite:////data/x.db?timeout=60", env=None, root=ROOT)
    assert uri == "sqlite:////data/x.db?timeout=60"
    assert sqlite_path(uri) == Path("/data/x.db")


def test_artifacts_lie_beside_the_file() -> None:
    """D13, I10: absolute, and inside mlartifacts whatever the experiment's name."""
    location = artifact_location("sqlite:////data/x.db", experiment="../../evil", root=ROOT)
    assert location is not None
    assert location.startswith("file:///data/mlartifacts/")
    assert location.removeprefix("file:///data/mlartifacts/").strip(".")
    assert "/" not in location.removeprefix("file:///data/mlartifacts/")
    assert artifact_location("postgresql://h/db", experiment="a", root=ROOT) == "file:///project/mlartifacts/a"
    assert artifact_location("https://h", experiment="a", root=ROOT) is None
