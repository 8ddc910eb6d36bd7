"""Frameworks whose launch files are read, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.launch_files.launch import LaunchReader
from shardwright.launch_files.megatron import MEGATRON

READERS: Final[Mapping[str, LaunchReader]] = MappingProxyType({reader.name: reader for reader in (MEGATRON,)})
