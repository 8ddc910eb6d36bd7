"""Frameworks as people name them."""

from __future__ import annotations

import pytest

from shardwright.runtime.framework_name_matching import nearest_runtime_name
from shardwright.runtime.runtime_registry import is_runtime, load_runtime, runtime_names


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Megatron-LM", "megatron-core-0.12"),
        ("Megatron Core 0.14", "megatron-core-0.12"),
        ("mcore v0.17", "megatron-core-0.16"),
        ("Megatron-LM v2.5", "megatron-2021"),
        ("Megatron-LM 3.0", "megatron-2022"),
        ("Megatron-LM with 3D parallelism", "megatron-core-0.12"),
        ("Megatron_Bridge 0.3", "megatron-bridge"),
        ("NeMo", "nemo-24.11"),
        ("NeMo 2.0", "nemo-24.11"),
        ("nemo:24.05", "nemo-24.07"),
        ("NeMo 25.07", "nemo-25.04"),
        ("DeepSpeed ZeRO-3", "deepspeed-0.16"),
        ("DeepSpeed 0.5.1", "deepspeed-2021"),
        ("Megatron-DeepSpeed", "deepspeed-2022"),
        ("GPT-NeoX", "deepspeed-2022"),
        ("PyTorch FSDP", "fsdp1-llm-foundry"),
        ("FSDP2 (torch 2.5)", "torchtitan-0.2"),
        ("Colossal-AI", ""),
        ("", ""),
    ],
)
def test_the_base_that_is_nearest(said: str, meant: str) -> None:
    assert nearest_runtime_name(said) == meant


def test_every_base_is_found_by_its_own_name() -> None:
    """Or, of years, by the version that it was then."""
    found = {
        nearest_runtime_name(load_runtime(name).framework + " " + load_runtime(name).version)
        for name in runtime_names()
    }
    assert all(is_runtime(name) for name in found)
    assert {
        "megatron-core-0.12",
        "megatron-core-0.16",
        "deepspeed-0.16",
        "nanotron",
        "maxtext",
        "internevo",
    } <= found
