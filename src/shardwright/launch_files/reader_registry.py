"""Frameworks whose launch files are read, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.launch_files.launch.framework_claims import Claimant
from shardwright.launch_files.launch.launch import LaunchReader
from shardwright.launch_files.launch.unread_frameworks import NOT_READ
from shardwright.launch_files.megatron.bridge_recipes import BRIDGE_RECIPE
from shardwright.launch_files.megatron.gpt_neox import GPT_NEOX
from shardwright.launch_files.megatron.megatron_dialects import (
    BRIDGE,
    FLAGSCALE,
    MEGATRON_DEEPSPEED,
    NEMO,
)
from shardwright.launch_files.megatron.megatron_reader import MEGATRON
from shardwright.launch_files.megatron.nemo_recipes import NEMO_RECIPE
from shardwright.launch_files.megatron.primus import PRIMUS
from shardwright.launch_files.others.maxtext import MAXTEXT
from shardwright.launch_files.others.nanotron import NANOTRON
from shardwright.launch_files.others.torchtitan import TORCHTITAN
from shardwright.launch_files.trainers.accelerate import ACCELERATE
from shardwright.launch_files.trainers.axolotl import AXOLOTL
from shardwright.launch_files.trainers.deepspeed import DEEPSPEED
from shardwright.launch_files.trainers.llama_factory import LLAMA_FACTORY
from shardwright.launch_files.trainers.ms_swift import MS_SWIFT
from shardwright.launch_files.trainers.torchtune import TORCHTUNE
from shardwright.launch_files.trainers.transformers_trainer import TRANSFORMERS
from shardwright.launch_files.trainers.trl import TRL
from shardwright.launch_files.trainers.verl import VERL

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
