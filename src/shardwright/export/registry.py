"""The targets of exports, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from shardwright.export.accelerate import ACCELERATE
from shardwright.export.deepspeed import DEEPSPEED
from shardwright.export.exporter import Exporter, Given
from shardwright.export.flagscale import FLAGSCALE
from shardwright.export.maxtext import MAXTEXT
from shardwright.export.megatron import MEGATRON
from shardwright.export.megatron_arguments import grid_flags
from shardwright.export.megatron_bridge import MEGATRON_BRIDGE
from shardwright.export.megatron_model import Flags
from shardwright.export.nanotron import NANOTRON
from shardwright.export.torchtitan import TORCHTITAN

TARGETS: Final[Mapping[str, Exporter]] = {
    target.name: target
    for target in (
        ACCELERATE,
        DEEPSPEED,
        FLAGSCALE,
        MAXTEXT,
        MEGATRON,
        MEGATRON_BRIDGE,
        NANOTRON,
        TORCHTITAN,
    )
}
STRATEGIES: Final[Mapping[str, Callable[[Given], Flags]]] = {MEGATRON.name: grid_flags}
"""Targets that say a strategy apart from the model, and the settings by which: they can, too, where
they have no such model."""
