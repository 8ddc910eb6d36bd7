"""Configurations of every family whose weights are read."""

from __future__ import annotations

from tests.execute.huggingface_layouts import CONFIGS
from tests.execute.published_configs import PUBLISHED

ALL = {**CONFIGS, **PUBLISHED}


def first_of_each() -> set[str]:
    """One of every family."""
    found: dict[str, str] = {}
    for name, config in ALL.items():
        found.setdefault(config["architectures"][0], name)
    return set(found.values())
