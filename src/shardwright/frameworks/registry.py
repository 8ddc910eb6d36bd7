"""Frameworks by name: readers of launch files, and exporters of plans.

A reader or an exporter is imported when it is used, so that a command loads only the frameworks
that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Final

from shardwright.errors import StrategyError
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    PlanToExport,
)
from shardwright.frameworks.launch.framework_detection import Claimant
from shardwright.frameworks.launch.training_launch_and_reader_types import LaunchReader
from shardwright.frameworks.launch.unsupported_frameworks import NOT_READ
from shardwright.registry import Registry

READERS: Final[Registry[LaunchReader]] = Registry(
    "framework",
    {
        "megatron": "shardwright.frameworks.megatron.read:MEGATRON",
        "megatron-deepspeed": "shardwright.frameworks.megatron_deepspeed.read:MEGATRON_DEEPSPEED",
        "megatron-bridge": "shardwright.frameworks.megatron_bridge.read:BRIDGE",
        "nemo": "shardwright.frameworks.nemo.read:NEMO",
        "flagscale": "shardwright.frameworks.flagscale.read:FLAGSCALE",
        "deepspeed": "shardwright.frameworks.deepspeed.read:DEEPSPEED",
        "accelerate": "shardwright.frameworks.accelerate.read:ACCELERATE",
        "nanotron": "shardwright.frameworks.nanotron.read:NANOTRON",
        "torchtitan": "shardwright.frameworks.torchtitan.read:TORCHTITAN",
        "maxtext": "shardwright.frameworks.maxtext.read:MAXTEXT",
        "huggingface-trainer": "shardwright.frameworks.transformers.read:TRANSFORMERS",
        "trl": "shardwright.frameworks.trl.read:TRL",
        "llama-factory": "shardwright.frameworks.llama_factory.read:LLAMA_FACTORY",
        "axolotl": "shardwright.frameworks.axolotl.read:AXOLOTL",
        "ms-swift": "shardwright.frameworks.ms_swift.read:MS_SWIFT",
        "torchtune": "shardwright.frameworks.torchtune.read:TORCHTUNE",
        "verl": "shardwright.frameworks.verl.read:VERL",
        "gpt-neox": "shardwright.frameworks.gpt_neox.read:GPT_NEOX",
        "primus": "shardwright.frameworks.primus.read:PRIMUS",
        "nemo-recipe": "shardwright.frameworks.nemo.read_recipes:NEMO_RECIPE",
        "bridge-recipe": "shardwright.frameworks.megatron_bridge.read_recipes:BRIDGE_RECIPE",
    },
)
"""Frameworks whose launch files are read."""
TARGETS: Final[Registry[Exporter]] = Registry(
    "target",
    {
        "accelerate": "shardwright.frameworks.accelerate.write:ACCELERATE",
        "deepspeed": "shardwright.frameworks.deepspeed.write:DEEPSPEED",
        "flagscale": "shardwright.frameworks.flagscale.write:FLAGSCALE",
        "maxtext": "shardwright.frameworks.maxtext.write:MAXTEXT",
        "megatron": "shardwright.frameworks.megatron.write:MEGATRON",
        "megatron-bridge": "shardwright.frameworks.megatron_bridge.write:MEGATRON_BRIDGE",
        "nanotron": "shardwright.frameworks.nanotron.write:NANOTRON",
        "torchtitan": "shardwright.frameworks.torchtitan.write:TORCHTITAN",
    },
    error=partial(StrategyError, rule="export.target"),
)
"""Frameworks whose files are written from a plan."""
STRATEGY_FLAGS: Final[Registry[Callable[[PlanToExport], list[tuple[str, str]]]]] = Registry(
    "target", {"megatron": "shardwright.frameworks.megatron.plan_arguments:grid_flags"}
)
"""Functions that write a strategy's flags without the model's, by export target.

They also work for a model that the target itself cannot express.
"""


@cache
def claimants() -> Mapping[str, Claimant]:
    """Name -> framework, of all that can claim a launch file: refused frameworks, then readers."""
    return MappingProxyType(
        {
            **{name: framework for name, framework in NOT_READ.items() if name not in READERS},
            **{name: READERS.load(name) for name in READERS},
        }
    )
