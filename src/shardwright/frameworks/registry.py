"""Every framework by name, with what can be done with its files: launches read, plans written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.accelerate.read import ACCELERATE
from shardwright.frameworks.accelerate.write import ACCELERATE as ACCELERATE_FILES
from shardwright.frameworks.axolotl.read import AXOLOTL
from shardwright.frameworks.deepspeed.read import DEEPSPEED
from shardwright.frameworks.deepspeed.write import DEEPSPEED as DEEPSPEED_FILES
from shardwright.frameworks.export.exporter import Exporter, Given
from shardwright.frameworks.flagscale.read import FLAGSCALE
from shardwright.frameworks.flagscale.write import FLAGSCALE as FLAGSCALE_FILES
from shardwright.frameworks.gpt_neox.read import GPT_NEOX
from shardwright.frameworks.launch.framework_claims import Claimant
from shardwright.frameworks.launch.launch import LaunchReader
from shardwright.frameworks.launch.unread_frameworks import NOT_READ
from shardwright.frameworks.llama_factory.read import LLAMA_FACTORY
from shardwright.frameworks.maxtext.read import MAXTEXT
from shardwright.frameworks.maxtext.write import MAXTEXT as MAXTEXT_FILES
from shardwright.frameworks.megatron.model_arguments import Flags
from shardwright.frameworks.megatron.plan_arguments import grid_flags
from shardwright.frameworks.megatron.read import MEGATRON
from shardwright.frameworks.megatron.write import MEGATRON as MEGATRON_FILES
from shardwright.frameworks.megatron_bridge.read import BRIDGE
from shardwright.frameworks.megatron_bridge.recipes import BRIDGE_RECIPE
from shardwright.frameworks.megatron_bridge.write import MEGATRON_BRIDGE as BRIDGE_FILES
from shardwright.frameworks.megatron_deepspeed.read import MEGATRON_DEEPSPEED
from shardwright.frameworks.ms_swift.read import MS_SWIFT
from shardwright.frameworks.nanotron.read import NANOTRON
from shardwright.frameworks.nanotron.write import NANOTRON as NANOTRON_FILES
from shardwright.frameworks.nemo.read import NEMO
from shardwright.frameworks.nemo.recipes import NEMO_RECIPE
from shardwright.frameworks.primus.read import PRIMUS
from shardwright.frameworks.torchtitan.read import TORCHTITAN
from shardwright.frameworks.torchtitan.write import TORCHTITAN as TORCHTITAN_FILES
from shardwright.frameworks.torchtune.read import TORCHTUNE
from shardwright.frameworks.transformers.read import TRANSFORMERS
from shardwright.frameworks.trl.read import TRL
from shardwright.frameworks.verl.read import VERL

_READERS: Final[tuple[LaunchReader, ...]] = (
    *(MEGATRON, MEGATRON_DEEPSPEED, BRIDGE, NEMO, FLAGSCALE),
    *(DEEPSPEED, ACCELERATE, NANOTRON, TORCHTITAN, MAXTEXT),
    *(TRANSFORMERS, TRL, LLAMA_FACTORY, AXOLOTL, MS_SWIFT, TORCHTUNE, VERL, GPT_NEOX, PRIMUS),
    *(NEMO_RECIPE, BRIDGE_RECIPE),
)
READERS: Final[Mapping[str, LaunchReader]] = MappingProxyType(
    {reader.name: reader for reader in _READERS}
)
CLAIMANTS: Final[Mapping[str, Claimant]] = MappingProxyType(
    {**{name: one for name, one in NOT_READ.items() if name not in READERS}, **READERS}
)
"""Frameworks that claim files: those that are read, and those that are refused by name."""
_EXPORTERS: Final[tuple[Exporter, ...]] = (
    *(ACCELERATE_FILES, DEEPSPEED_FILES, FLAGSCALE_FILES, MAXTEXT_FILES),
    *(MEGATRON_FILES, BRIDGE_FILES, NANOTRON_FILES, TORCHTITAN_FILES),
)
TARGETS: Final[Mapping[str, Exporter]] = MappingProxyType(
    {target.name: target for target in _EXPORTERS}
)
STRATEGIES: Final[Mapping[str, Callable[[Given], Flags]]] = MappingProxyType(
    {MEGATRON_FILES.name: grid_flags}
)
"""Targets that say a strategy apart from the model, and the settings by which: they can, too, where
they have no such model."""
