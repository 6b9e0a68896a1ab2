"""Schemas in Hydra's ConfigStore, so that every key of ``conf/`` is typed by its dataclass."""

from functools import cache
from typing import get_type_hints

from hydra.core.config_store import ConfigStore

from src.config.schema import JOBS, OPTIONS, Config, DoctorConfig

VERSION_BASE = "1.3"

BASES: dict[str, type] = {f"base_{job}": kind for job, kind in JOBS.items()} | {"base": Config, "base_doctor": DoctorConfig}


@cache
def register() -> None:
    """Store the base schemas, and ``GROUP_OPTION_schema`` for each option that has fields of its own. A second call does nothing.

    Schemas lie outside their groups, where they would be listed as options; an option's file pulls its own in with ``@_here_``.
    """
    store = ConfigStore.instance()
    for name, kind in BASES.items():
        store.store(name=name, node=kind)
    declared = get_type_hints(Config)
    for group, options in OPTIONS.items():
        for name, kind in options.items():
            if kind is not declared[group]:
                store.store(name=f"{group}_{name}_schema", node=kind)
