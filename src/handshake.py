"""Ranks make sure before the first step that they are about to do the same thing."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from src.config import runfile
from src.config.schema import Config
from src.errors import ConfigError
from src.parallel import Parallel

SOURCE = Path(__file__).parent
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def shake_hands(parallel: Parallel, config: Config, model: nn.Module, *, data: dict[str, Any]) -> None:
    """Compare config, code, torch, data and initial weights over all ranks; every rank calls this once.

    Args:
        data: name -> fact about the data, in plain types.

    Raises:
        ConfigError: on every rank, naming what differs and on which ranks.
    """
    if parallel.rank.world_size == 1:
        return
    facts: dict[str, Any] = {"config": runfile.digest(config), "code": code_digest(SOURCE), "torch version": torch.__version__}
    facts |= data | {"initial weights": weights_digest(model)}
    if report := "; ".join(differences(parallel.gather(facts))):
        raise ConfigError(
            f"the ranks do not agree, and nothing was trained: {report}; start all of them with the same command, code, versions and data, "
            "and let nothing that your own code draws at random depend on the rank"
        )


def differences(facts: Sequence[dict[str, Any]]) -> list[str]:
    """What is not the same in all of ``facts``, one entry a rank: a short text for each name."""
    report = []
    for name in facts[0]:
        ranks: dict[str, list[int]] = {}
        for rank, fact in enumerate(facts):
            ranks.setdefault(_shown(fact[name]), []).append(rank)
        if len(ranks) > 1:
            report.append(f"{name} ({', '.join(f'{value} on {_listed(who)}' for value, who in ranks.items())})")
    return report


def code_digest(folder: Path) -> str:
    """SHA-256 (hex) over the Python files under ``folder`` and their names."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes()):
            found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()


@torch.no_grad()
def weights_digest(model: nn.Module) -> str:
    """SHA-256 (hex) over names, dtypes, shapes and the sums of the bits of all parameters and buffers.

    Sums of integers are exact in any order and are taken where the tensors are: one small copy to the host for a whole network.
    """
    state = model.state_dict()
    names = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in state.items()]
    values = torch.stack([_bit_sum(tensor) for tensor in state.values()]).tolist() if state else []
    return hashlib.sha256(json.dumps([names, values]).encode()).hexdigest()


def _bit_sum(tensor: Tensor) -> Tensor:
    return tensor.detach().view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text if len(text) <= 60 else f"{text[:57]}..."


def _listed(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}" + (" and more" if len(ranks) > 8 else "")
