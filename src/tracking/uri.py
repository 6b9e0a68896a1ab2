"""From what a user typed to the absolute address of an MLflow store. No mlflow import, so that it can run before anything starts."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from src.errors import ConfigError
from src.tracking.names import file_name

ARTIFACTS = "mlartifacts"

_SQLITE = "sqlite:///"
_FILE_SUFFIXES = {".db", ".sqlite", ".sqlite3"}
_SERVER = re.compile(r"(https?|postgresql|mysql|mssql)(\+\w+)?://.+|databricks(-uc)?(://.*)?")


def resolve_uri(text: str | None, *, env: str | None, root: Path) -> str:
    """The store's address: ``tracking.uri``, else MLFLOW_TRACKING_URI, else one sqlite file under ``root``; local paths made absolute.

    A relative path counts from where the command was typed, as MLflow's own commands do. Raises ConfigError for a folder store, which
    MLflow no longer opens, for a database in memory, and for an unknown scheme.
    """
    source = "tracking.uri" if text else "MLFLOW_TRACKING_URI"
    text = text or env
    if not text:
        return f"{_SQLITE}{root.absolute() / 'mlflow.db'}"
    if text.startswith("sqlite:"):
        return _absolute_sqlite(text, source)
    if _SERVER.fullmatch(text):
        return text
    if re.match(r"\w[\w+.-]*:", text) and not text.startswith("file:"):
        known = "sqlite:///FILE, http(s)://, postgresql://, mysql://, mssql:// or databricks"
        raise ConfigError(f"{source}={text} has a scheme that no MLflow store has; use {known}")
    path = Path(unquote(urlsplit(text).path) if text.startswith("file:") else text).expanduser().absolute()
    if path.suffix in _FILE_SUFFIXES and not path.is_dir():
        return f"{_SQLITE}{path}"
    raise ConfigError(f"{source}={text} is a folder, and MLflow no longer opens folder stores; use {_SQLITE}{path / 'mlflow.db'}")


def sqlite_path(uri: str) -> Path | None:
    """The database file of a sqlite address, None for other stores."""
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]) if uri.startswith(_SQLITE) else None


def artifact_location(uri: str, *, experiment: str, root: Path) -> str | None:
    """Absolute artifact folder of a new experiment as a file: URI; None where a server decides.

    It stands beside a sqlite file, and under ``root`` for other databases: left alone, MLflow would use the current directory.
    """
    if uri.startswith(("http", "databricks")):
        return None
    database = sqlite_path(uri)
    folder = database.parent if database else root.absolute()
    return (folder / ARTIFACTS / file_name(experiment)).as_uri()


def _absolute_sqlite(text: str, source: str) -> str:
    path, question, query = text.removeprefix(_SQLITE).partition("?")
    if not text.startswith(_SQLITE) or path in ("", ":memory:"):
        raise ConfigError(f"{source}={text} is a database in memory, gone when the command ends; use {_SQLITE}FILE")
    return f"{_SQLITE}{Path(path).expanduser().absolute()}{question}{query}"
