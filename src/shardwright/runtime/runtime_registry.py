"""Catalog of training runtimes by name, with aliases and defaults; entries load on first use."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

from shardwright.errors import RuntimeModelError
from shardwright.registry import Registry
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.list_and_set_runtime_options import default_options, runtime_with_options

_ALIASES: Final = {
    "deepseek-v3": ("hai-llm", "deepseek"),
    "deepspeed-0.16": ("deepspeed",),
    "deepspeed-2022": ("megatron-deepspeed",),
    "fsdp1-llm-foundry": ("mosaic", "llm-foundry", "fsdp1"),
    "internevo": ("internlm",),
    "maxtext": ("jax-maxtext", "jax"),
    "megatron-2021": ("megatron-lm-2021", "megatron-sc21"),
    "megatron-2022": ("megatron-lm-2022", "megatron-korthikanti"),
    "megatron-core-0.12": ("megatron-core", "megatron", "mcore"),
    "nemo-24.07": ("nemo-2407",),
    "nemo-24.11": ("nemo", "nemo-2411", "nemo-25.02"),
    "torchtitan-0.1": ("torchtitan-2024",),
    "torchtitan-0.2": ("torchtitan", "fsdp2", "pytorch-fsdp2"),
}
_RUNTIMES: Final = Registry[Runtime](
    "runtime",
    {
        "deepseek-v3": "shardwright.runtime.releases.deepseek:V3",
        "deepspeed-0.16": "shardwright.runtime.releases.deepspeed:V0_16",
        "deepspeed-2021": "shardwright.runtime.releases.deepspeed:LISTED",
        "deepspeed-2022": "shardwright.runtime.releases.deepspeed:MEGATRON",
        "fsdp1-llm-foundry": "shardwright.runtime.releases.llm_foundry:RUNTIME",
        "internevo": "shardwright.runtime.releases.internevo:RUNTIME",
        "maxtext": "shardwright.runtime.releases.maxtext:RUNTIME",
        "megatron-2021": "shardwright.runtime.releases.megatron_lm_before_megatron_core:Y2021",
        "megatron-2022": "shardwright.runtime.releases.megatron_lm_before_megatron_core:Y2022",
        "megatron-bridge": "shardwright.runtime.releases.megatron_bridge:RUNTIME",
        "megatron-core-0.5": "shardwright.runtime.releases.megatron_core_older_releases:V0_5",
        "megatron-core-0.6": "shardwright.runtime.releases.megatron_core_older_releases:V0_6",
        "megatron-core-0.7": "shardwright.runtime.releases.megatron_core_older_releases:V0_7",
        "megatron-core-0.8": "shardwright.runtime.releases.megatron_core_older_releases:V0_8",
        "megatron-core-0.9": "shardwright.runtime.releases.megatron_core_older_releases:V0_9",
        "megatron-core-0.10": "shardwright.runtime.releases.megatron_core_older_releases:V0_10",
        "megatron-core-0.11": "shardwright.runtime.releases.megatron_core_older_releases:V0_11",
        "megatron-core-0.12": "shardwright.runtime.releases.megatron_core:V0_12",
        "megatron-core-0.16": "shardwright.runtime.releases.megatron_core:V0_16",
        "nanotron": "shardwright.runtime.releases.nanotron:RUNTIME",
        "nemo-24.07": "shardwright.runtime.releases.nemo:NEMO_24_07",
        "nemo-24.11": "shardwright.runtime.releases.nemo:NEMO_24_11",
        "nemo-25.04": "shardwright.runtime.releases.nemo:NEMO_25_04",
        "paxml": "shardwright.runtime.releases.maxtext:PAXML",
        "shardwright": "shardwright.runtime.releases.shardwright_interpreter:RUNTIME",
        "torchtitan-0.1": "shardwright.runtime.releases.torchtitan:V0_1",
        "torchtitan-0.2": "shardwright.runtime.releases.torchtitan:V0_2",
    },
    aliases={alias: name for name, aliases in _ALIASES.items() for alias in aliases},
    error=RuntimeModelError,
)
DEFAULT: Final = "megatron-core-0.12"
_DEFAULTS: Final = {"Google": "maxtext"}


def runtime_names() -> tuple[str, ...]:
    """Names of all runtimes, sorted, without aliases and options."""
    return tuple(sorted(_RUNTIMES))


def is_runtime(name: str) -> bool:
    """True if a runtime has this name or alias."""
    return name.lower() in _RUNTIMES


VENDORS: Final = frozenset({"NVIDIA", "AMD", "Intel", "Huawei", "AWS", "Google"})
"""Vendors whose accelerators have a known set of runtimes; other vendors' may run any runtime."""


def default_runtime(vendor: str) -> str:
    """Name of the default runtime of a vendor's accelerators; the general default for others."""
    return _DEFAULTS.get(vendor, DEFAULT)


MAX_TEXT: Final = 1000


def load_runtime(text: str) -> Runtime:
    """Runtime of a text ``name option=value ..``; RuntimeModelError for unknown names or options.

    Text such as ``megatron-core-0.12 tp_overlap=dgrad``; letter case does not matter.

    Raises:
        RuntimeModelError: an unknown name (the hint has the nearest), or an option that the runtime
            does not offer (see `list_and_set_runtime_options.runtime_with_options`).
    """
    words = text.lower().split() if len(text) <= MAX_TEXT else []
    name = words[0] if words else text.strip().lower()
    return _with_options(_RUNTIMES.name_of(name), tuple(words[1:]))


def options_in_text(text: str) -> dict[str, str]:
    """Parse the ``option=value`` words after the runtime's name as {option: value}.

    Options that equal the runtime's defaults are in the result too.
    """
    pairs = (word.partition("=") for word in text.lower().split()[1:])
    return {name: value for name, _, value in pairs}


@cache
def _with_options(name: str, words: tuple[str, ...]) -> Runtime:
    """Return the catalog runtime `name` with ``option=value`` words set; cached."""
    pairs = []
    for word in words:
        option, mark, value = word.partition("=")
        if not mark:
            raise RuntimeModelError(
                f"{word[:80]!r} behind {name} is not option=value", hint="such as tp_overlap=dgrad"
            )
        pairs.append((option, value))
    return runtime_with_options(_load_base(name), pairs)


@cache
def _load_base(name: str) -> Runtime:
    """Load the catalog runtime `name` with its aliases and default options; cached."""
    runtime = _RUNTIMES.load(name)
    return replace(
        runtime, aliases=_ALIASES.get(name, ()), own=default_options(runtime), base=runtime.name
    )
