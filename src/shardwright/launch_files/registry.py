"""Frameworks whose launch files are read, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.launch_files.accelerate import ACCELERATE
from shardwright.launch_files.axolotl import AXOLOTL
from shardwright.launch_files.bridge_recipes import BRIDGE_RECIPE
from shardwright.launch_files.claims import Claimant
from shardwright.launch_files.deepspeed import DEEPSPEED
from shardwright.launch_files.dialects import BRIDGE, FLAGSCALE, MEGATRON_DEEPSPEED, NEMO
from shardwright.launch_files.gpt_neox import GPT_NEOX
from shardwright.launch_files.launch import LaunchReader
from shardwright.launch_files.llama_factory import LLAMA_FACTORY
from shardwright.launch_files.maxtext import MAXTEXT
from shardwright.launch_files.megatron import MEGATRON
from shardwright.launch_files.ms_swift import MS_SWIFT
from shardwright.launch_files.nanotron import NANOTRON
from shardwright.launch_files.nemo_recipes import NEMO_RECIPE
from shardwright.launch_files.not_read import NOT_READ
from shardwright.launch_files.primus import PRIMUS
from shardwright.launch_files.torchtitan import TORCHTITAN
from shardwright.launch_files.torchtune import TORCHTUNE
from shardwright.launch_files.transformers_trainer import TRANSFORMERS
from shardwright.launch_files.trl import TRL
from shardwright.launch_files.verl import VERL

_ALL: Final[tuple[LaunchReader, ...]] = (
    *(MEGATRON, MEGATRON_DEEPSPEED, BRIDGE, NEMO, FLAGSCALE),
    *(DEEPSPEED, ACCELERATE, NANOTRON, TORCHTITAN, MAXTEXT),
    *(TRANSFORMERS, TRL, LLAMA_FACTORY, AXOLOTL, MS_SWIFT, TORCHTUNE, VERL, GPT_NEOX, PRIMUS),
    *(NEMO_RECIPE, BRIDGE_RECIPE),
)
READERS: Final[Mapping[str, LaunchReader]] = MappingProxyType(
    {reader.name: reader for reader in _ALL}
)
CLAIMANTS: Final[Mapping[str, Claimant]] = MappingProxyType(
    {**{name: one for name, one in NOT_READ.items() if name not in READERS}, **READERS}
)
"""Frameworks that claim files: those that are read, and those that are refused by name."""
