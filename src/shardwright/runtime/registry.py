"""Runtimes by name: a file each (or a name in one), loaded when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from shardwright.errors import RuntimeModelError, nearest
from shardwright.runtime.runtime import Runtime

_MODULES: Final = {
    "deepspeed-0.16": "shardwright.runtime.deepspeed_0_16",
    "deepspeed-2022": "shardwright.runtime.deepspeed_2022",
    "deepspeed-2022-eager": "shardwright.runtime.deepspeed_amp",
    "fsdp1-llm-foundry": "shardwright.runtime.fsdp1_llm_foundry",
    "internevo": "shardwright.runtime.internevo",
    "maxtext": "shardwright.runtime.maxtext",
    "megatron-2021": "shardwright.runtime.megatron_2021",
    "megatron-2022": "shardwright.runtime.megatron_2022",
    "megatron-core-0.12": "shardwright.runtime.megatron_core_0_12",
    "megatron-core-0.12-plain": "shardwright.runtime.megatron_core_plain",
    "megatron-bridge": "shardwright.runtime.megatron_bridge:DENSE",
    "megatron-bridge-alltoall": "shardwright.runtime.megatron_bridge:ALL_TO_ALL",
    "megatron-bridge-alltoall-overlap": "shardwright.runtime.megatron_bridge:ALL_TO_ALL_OVERLAP",
    "megatron-bridge-dropped": "shardwright.runtime.megatron_bridge:DROPPED",
    "megatron-bridge-dropped-eager": "shardwright.runtime.megatron_bridge:DROPPED_EAGER",
    "megatron-bridge-flex": "shardwright.runtime.megatron_bridge:FLEX",
    "megatron-bridge-graphed-kept": "shardwright.runtime.megatron_bridge:GRAPHED_KEPT",
    "megatron-bridge-graphed-sixteen": "shardwright.runtime.megatron_bridge:GRAPHED_SIXTEEN",
    "megatron-bridge-scoped-overlap": "shardwright.runtime.megatron_bridge:SCOPED_OVERLAP",
    "megatron-bridge-flex-overlap": "shardwright.runtime.megatron_bridge:FLEX_OVERLAP",
    "megatron-bridge-graphed": "shardwright.runtime.megatron_bridge:GRAPHED",
    "megatron-bridge-router": "shardwright.runtime.megatron_bridge:ROUTER",
    "megatron-bridge-router-overlap": "shardwright.runtime.megatron_bridge:ROUTER_OVERLAP",
    "megatron-bridge-scoped": "shardwright.runtime.megatron_bridge:SCOPED",
    "megatron-bridge-scoped-alltoall": "shardwright.runtime.megatron_bridge:SCOPED_ALL_TO_ALL",
    "megatron-bridge-scoped-kept": "shardwright.runtime.megatron_bridge:SCOPED_KEPT",
    "megatron-core-0.12-fused-loss": "shardwright.runtime.megatron_core_fused_loss",
    "megatron-core-0.12-local": "shardwright.runtime.megatron_core_local",
    "megatron-core-0.16-serial": "shardwright.runtime.megatron_core_serial",
    "megatron-core-0.12-unfused": "shardwright.runtime.megatron_core_unfused",
    "nemo-24.07": "shardwright.runtime.nemo_2407",
    "nemo-24.11": "shardwright.runtime.nemo_2411",
    "nemo-25.04": "shardwright.runtime.nemo_2504",
    "torchtitan-0.1": "shardwright.runtime.torchtitan_0_1",
    "torchtitan-0.1-async-tp": "shardwright.runtime.torchtitan_0_1_async_tp",
    "torchtitan-0.2": "shardwright.runtime.torchtitan_0_2",
    "torchtitan-0.2-async-tp": "shardwright.runtime.torchtitan_async_tp",
    "torchtitan-0.2-eager": "shardwright.runtime.torchtitan_eager",
}
# written here and not read from the files, so that a name is resolved without loading them all; a test keeps both equal
_ALIASES: Final = {
    "deepspeed": "deepspeed-0.16",
    "fsdp1": "fsdp1-llm-foundry",
    "fsdp2": "torchtitan-0.2",
    "internlm": "internevo",
    "jax": "maxtext",
    "jax-maxtext": "maxtext",
    "llm-foundry": "fsdp1-llm-foundry",
    "mcore": "megatron-core-0.12",
    "megatron": "megatron-core-0.12",
    "megatron-core": "megatron-core-0.12",
    "megatron-core-plain": "megatron-core-0.12-plain",
    "megatron-core-serial": "megatron-core-0.16-serial",
    "megatron-deepspeed": "deepspeed-2022",
    "megatron-korthikanti": "megatron-2022",
    "megatron-lm-2021": "megatron-2021",
    "megatron-lm-2022": "megatron-2022",
    "megatron-sc21": "megatron-2021",
    "mosaic": "fsdp1-llm-foundry",
    "nemo": "nemo-24.11",
    "nemo-2407": "nemo-24.07",
    "nemo-2411": "nemo-24.11",
    "nemo-25.02": "nemo-24.11",
    "pytorch-fsdp2": "torchtitan-0.2",
    "torchtitan": "torchtitan-0.2",
    "torchtitan-2024": "torchtitan-0.1",
    "torchtitan-async-tp": "torchtitan-0.2-async-tp",
    "torchtitan-eager": "torchtitan-0.2-eager",
}
DEFAULT: Final = "megatron-core-0.12"


def runtime_names() -> tuple[str, ...]:
    """Names of all runtimes, sorted, without aliases."""
    return tuple(sorted(_MODULES))


def runtime_aliases() -> dict[str, str]:
    """Other names of the runtimes, each with the name it stands for."""
    return dict(_ALIASES)


def load_runtime(name: str) -> Runtime:
    """The runtime of that name or alias (letter case does not matter).

    Raises:
        RuntimeModelError: there is none; the hint names the nearest.
    """
    word = name.strip().lower()
    module = _MODULES.get(_ALIASES.get(word, word))
    if module is None:
        raise RuntimeModelError(f"unknown runtime {word[:80]!r}", hint=nearest(word[:80], (*_MODULES, *_ALIASES)))
    place, _, attribute = module.partition(":")
    runtime: Runtime = getattr(import_module(place), attribute or "RUNTIME")
    return runtime


def default_runtime() -> Runtime:
    """Megatron-Core: what is planned for when nothing is said."""
    return load_runtime(DEFAULT)
