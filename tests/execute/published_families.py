"""Configurations of every family whose weights are read."""

from __future__ import annotations

from shardwright.model.families.family_registry import ARCHITECTURES, REGISTRY
from tests.execute.huggingface_layouts import CONFIGS
from tests.execute.published_configs import PUBLISHED

ALL = {**CONFIGS, **PUBLISHED}


def first_of_each() -> set[str]:
    """One of every family."""
    found: dict[str, str] = {}
    for name, config in ALL.items():
        found.setdefault(config["architectures"][0], name)
    return set(found.values())


def published_name(architecture: str) -> str:
    """As published configurations have it, where Transformers' class has another name."""
    return ARCHITECTURES[REGISTRY[architecture]] if architecture in OTHERWISE else architecture


OTHERWISE = frozenset({"Kimi_K25ForConditionalGeneration", "MiniMaxM3VLForCausalLM"})
