"""Small files that are whole or absent."""

import json
import math
import os
from pathlib import Path
from typing import Any

RESERVE = ".reserve"
_RESERVED_BYTES = 2**17


def reserve(directory: Path) -> None:
    """Keep some of the disk for what is written last: how the run ended must be told even where a full disk ended it."""
    (directory / RESERVE).write_bytes(bytes(_RESERVED_BYTES))


def release(directory: Path) -> None:
    """Free what ``reserve`` keeps."""
    (directory / RESERVE).unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write strict JSON through a temporary file; numbers JSON does not have (inf, NaN) become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(_strict(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
