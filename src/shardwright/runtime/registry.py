"""Runtimes by name: a file for each framework, loaded when one of its runtimes is asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Final

from shardwright.errors import RuntimeModelError, nearest
from shardwright.runtime.runtime import Runtime

_MODULES: Final = {
    "deepspeed-0.16": "shardwright.runtime.deepspeed:V0_16",
    "deepspeed-2021": "shardwright.runtime.deepspeed:LISTED",
    "deepspeed-2022": "shardwright.runtime.deepspeed:MEGATRON",
    "deepspeed-2022-bf16": "shardwright.runtime.deepspeed:BF16",
    "deepspeed-2022-eager": "shardwright.runtime.deepspeed:MEGATRON_EAGER",
    "fsdp1-llm-foundry": "shardwright.runtime.llm_foundry:RUNTIME",
    "internevo": "shardwright.runtime.internevo:RUNTIME",
    "maxtext": "shardwright.runtime.maxtext:RUNTIME",
    "megatron-2021": "shardwright.runtime.megatron_lm:Y2021",
    "megatron-2022": "shardwright.runtime.megatron_lm:Y2022",
    "megatron-bridge": "shardwright.runtime.megatron_bridge:DENSE",
    "megatron-bridge-dropped": "shardwright.runtime.megatron_bridge:DROPPED",
    "megatron-bridge-dropped-eager": "shardwright.runtime.megatron_bridge:DROPPED_EAGER",
    "megatron-bridge-alltoall": "shardwright.runtime.megatron_bridge:ALL_TO_ALL",
    "megatron-bridge-alltoall-overlap": "shardwright.runtime.megatron_bridge:ALL_TO_ALL_OVERLAP",
    "megatron-bridge-flex": "shardwright.runtime.megatron_bridge:FLEX",
    "megatron-bridge-flex-overlap": "shardwright.runtime.megatron_bridge:FLEX_OVERLAP",
    "megatron-bridge-router": "shardwright.runtime.megatron_bridge:ROUTER",
    "megatron-bridge-router-overlap": "shardwright.runtime.megatron_bridge:ROUTER_OVERLAP",
    "megatron-bridge-scoped": "shardwright.runtime.megatron_bridge:SCOPED",
    "megatron-bridge-scoped-kept": "shardwright.runtime.megatron_bridge:SCOPED_KEPT",
    "megatron-bridge-scoped-alltoall": "shardwright.runtime.megatron_bridge:SCOPED_ALL_TO_ALL",
    "megatron-bridge-scoped-overlap": "shardwright.runtime.megatron_bridge:SCOPED_OVERLAP",
    "megatron-bridge-graphed": "shardwright.runtime.megatron_bridge:GRAPHED",
    "megatron-bridge-graphed-kept": "shardwright.runtime.megatron_bridge:GRAPHED_KEPT",
    "megatron-bridge-graphed-sixteen": "shardwright.runtime.megatron_bridge:GRAPHED_SIXTEEN",
    "megatron-core-0.12": "shardwright.runtime.megatron_core:BASE",
    "megatron-core-0.12-fused-loss": "shardwright.runtime.megatron_core:FUSED_LOSS",
    "megatron-core-0.12-local": "shardwright.runtime.megatron_core:LOCAL",
    "megatron-core-0.12-plain": "shardwright.runtime.megatron_core:PLAIN",
    "megatron-core-0.12-unfused": "shardwright.runtime.megatron_core:UNFUSED",
    "megatron-core-0.16-serial": "shardwright.runtime.megatron_core:SERIAL",
    "nemo-24.07": "shardwright.runtime.nemo:NEMO_24_07",
    "nemo-24.11": "shardwright.runtime.nemo:NEMO_24_11",
    "nemo-25.04": "shardwright.runtime.nemo:NEMO_25_04",
    "torchtitan-0.1": "shardwright.runtime.torchtitan:V0_1",
    "torchtitan-0.1-async-tp": "shardwright.runtime.torchtitan:V0_1_ASYNC_TP",
    "torchtitan-0.2": "shardwright.runtime.torchtitan:V0_2",
    "torchtitan-0.2-async-tp": "shardwright.runtime.torchtitan:V0_2_ASYNC_TP",
    "torchtitan-0.2-eager": "shardwright.runtime.torchtitan:V0_2_EAGER",
}
_ALIASES: Final = {
    "deepspeed-0.16": ("deepspeed",),
    "deepspeed-2022": ("megatron-deepspeed",),
    "fsdp1-llm-foundry": ("mosaic", "llm-foundry", "fsdp1"),
    "internevo": ("internlm",),
    "maxtext": ("jax-maxtext", "jax"),
    "megatron-2021": ("megatron-lm-2021", "megatron-sc21"),
    "megatron-2022": ("megatron-lm-2022", "megatron-korthikanti"),
    "megatron-core-0.12": ("megatron-core", "megatron", "mcore"),
    "megatron-core-0.12-plain": ("megatron-core-plain",),
    "megatron-core-0.16-serial": ("megatron-core-serial",),
    "nemo-24.07": ("nemo-2407",),
    "nemo-24.11": ("nemo", "nemo-2411", "nemo-25.02"),
    "torchtitan-0.1": ("torchtitan-2024",),
    "torchtitan-0.2": ("torchtitan", "fsdp2", "pytorch-fsdp2"),
    "torchtitan-0.2-async-tp": ("torchtitan-async-tp",),
    "torchtitan-0.2-eager": ("torchtitan-eager",),
}
_NAMES: Final = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
DEFAULT: Final = "megatron-core-0.12"
_DEFAULTS: Final = {"Google": "maxtext"}


def runtime_names() -> tuple[str, ...]:
    """Names of all runtimes, sorted, without aliases."""
    return tuple(sorted(_MODULES))


VENDORS: Final = frozenset({"NVIDIA", "AMD", "Intel", "Huawei", "AWS", "Google"})
"""Of whose accelerators it is known which runtimes run there; a user's own may run any."""


def default_runtime(vendor: str) -> str:
    """The runtime that a vendor's accelerators are planned with where none is named."""
    return _DEFAULTS.get(vendor, DEFAULT)


def load_runtime(name: str) -> Runtime:
    """The runtime of that name or alias (letter case does not matter).

    Raises:
        RuntimeModelError: there is none; the hint names the nearest.
    """
    word = name.strip().lower()
    known = _NAMES.get(word, word)
    if known not in _MODULES:
        raise RuntimeModelError(f"unknown runtime {word[:80]!r}", hint=nearest(word[:80], (*_MODULES, *_NAMES)))
    return _loaded(known)


@cache
def _loaded(name: str) -> Runtime:
    """The runtime of that name, made once."""
    module, _, attribute = _MODULES[name].partition(":")
    runtime: Runtime = getattr(import_module(module), attribute)
    return replace(runtime, aliases=_ALIASES.get(name, ()))
