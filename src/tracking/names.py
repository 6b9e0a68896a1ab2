"""Names and values that MLflow stores accept, made from whatever a config or a data set contains."""

import hashlib
import posixpath
import re
from collections.abc import Mapping

from src.tracking.base import Param

MAX_NAME = 250
MAX_PARAM_VALUE = 6000
MAX_TAG_VALUE = 8000

_ALLOWED = re.compile(r"[/\w.\- ]+", re.ASCII)
_REFUSED_CHARACTER = re.compile(r"[^/\w.\- ]", re.ASCII)


def clean_name(name: str) -> str:
    """The name itself if every MLflow store takes it, otherwise a readable form plus a hash of the original.

    The same name always gives the same result and two names never share one, so ``a,b`` and ``a;b`` stay apart. Names that would
    be another file path once resolved (``../x``, ``/x``, ``a//b``) are changed too.
    """
    if _ALLOWED.fullmatch(name) and len(name) <= MAX_NAME and not _resolves_elsewhere(name):
        return name
    parts = [part.lstrip(".") for part in _REFUSED_CHARACTER.sub("_", name).split("/")]
    return _with_hash("/".join(filter(None, parts)), original=name)


def file_name(name: str) -> str:
    """One component of a file path, made from any text as ``clean_name`` does."""
    return clean_name(name) if "/" not in name else _with_hash(clean_name(name).replace("/", "_"), original=name)


def shorten(text: str, limit: int) -> str:
    """The text itself, or its beginning with a visible marker that tells the full length and a hash, ``limit`` characters in all."""
    if len(text) <= limit:
        return text
    marker = f"... [shortened from {len(text)} characters, sha256 {_hash(text)[:16]}]"
    return text[: limit - len(marker)] + marker


def param_texts(params: Mapping[str, Param]) -> dict[str, str]:
    """Clean names and values as YAML would write them (null, true), each within MLflow's limit."""
    return {clean_name(name): shorten(_text(value), MAX_PARAM_VALUE) for name, value in params.items()}


def tag_texts(tags: Mapping[str, object]) -> dict[str, str]:
    """Clean names and values of tags, each within MLflow's limit."""
    return {clean_name(name): shorten(_text(value), MAX_TAG_VALUE) for name, value in tags.items()}


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_hash(readable: str, *, original: str) -> str:
    return f"{readable[: MAX_NAME - 9]}-{_hash(original)[:8]}"


def _resolves_elsewhere(name: str) -> bool:
    return posixpath.normpath(name) != name or name == "." or name.startswith(("..", "/"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
