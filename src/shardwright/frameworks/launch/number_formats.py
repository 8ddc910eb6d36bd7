"""Settings by which a framework computes in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_SAID: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "megatron": {"bf16": "bf16", "fp16": "fp16"},
        "megatron-deepspeed": {"bf16": "bf16", "fp16": "fp16"},
        "flagscale": {"bf16": "system.precision.bf16", "fp16": "system.precision.fp16"},
        "deepspeed": {"bf16": "bf16.enabled", "fp16": "fp16.enabled"},
    }
)
"""Framework -> format -> the switch for it."""
_VALUES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = MappingProxyType(
    {
        "accelerate": ("mixed-precision", {"bf16": "bf16", "fp16": "fp16"}),
        "nemo": ("trainer.precision", {"bf16": "bf16-mixed", "fp16": "16"}),
        "megatron-bridge": ("mixed-precision", {"bf16": "bf16_mixed", "fp16": "fp16_mixed"}),
        "nanotron": ("model.dtype", {"bf16": "bfloat16", "fp16": "float16"}),
        "torchtitan": ("training.mixed-precision-param", {"bf16": "bfloat16", "fp16": "float16"}),
        "maxtext": ("dtype", {"bf16": "bfloat16", "fp16": "float16"}),
    }
)
"""Framework -> the setting, and its value for each format."""


def half_settings(framework: str, precision: str) -> tuple[tuple[str, str], ...]:
    """(name, value) by which a framework computes in ``bf16`` or ``fp16``; empty where it is not
    known how it says that.
    """
    if precision in _SAID.get(framework, {}):
        return ((_SAID[framework][precision], "true"),)
    name, values = _VALUES.get(framework, ("", {}))
    return ((name, values[precision]),) if precision in values else ()
