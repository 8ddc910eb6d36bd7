"""A stand-in of torchtitan's modules: what an exported module imports, with the fields of version
0.3.0, so that it can be run anywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import patch


@dataclass(kw_only=True, slots=True)
class TrainingConfig:
    local_batch_size: int = 8
    global_batch_size: int = -1
    seq_len: int = 2048
    disable_cuda_graphs: bool = False


@dataclass(kw_only=True, slots=True)
class ParallelismConfig:
    data_parallel_replicate_degree: int = 1
    data_parallel_shard_degree: int = -1
    fsdp_reshard_after_forward: str = "default"
    tensor_parallel_degree: int = 1
    enable_sequence_parallel: bool = True
    pipeline_parallel_degree: int = 1
    module_fqns_per_model_part: list[list[str]] | None = None
    pipeline_parallel_schedule: str = "1F1B"
    pipeline_parallel_schedule_csv: str | None = ""
    pipeline_parallel_microbatch_size: int = 1
    context_parallel_degree: int = 1
    expert_parallel_degree: int = 1


@dataclass(kw_only=True, slots=True)
class CompileConfig:
    enable: bool = False
    enable_async_tensor_parallel: bool = False


class Named:
    """Whatever is only passed on."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments, self.named = arguments, named


class Configured:
    """A component with a `Config`."""

    class Config(Named):
        pass


class FullAC:
    class Config(Named):
        pass


class SelectiveAC:
    class Config(Named):
        pass


@dataclass(kw_only=True)
class TrainerConfig:
    model_spec: Any
    loss: Any
    optimizer: Any
    dataloader: Any
    training: TrainingConfig
    parallelism: ParallelismConfig
    activation_checkpoint: Any
    compile: CompileConfig = field(default_factory=CompileConfig)


class Trainer:
    Config = TrainerConfig


def _module(name: str, **content: Any) -> ModuleType:
    found = ModuleType(name)
    for key, value in content.items():
        setattr(found, key, value)
    return found


@contextmanager
def stood_in() -> Iterator[None]:
    """torchtitan's modules are these, while the context lasts."""
    modules = {
        "torchtitan": {},
        "torchtitan.components": {},
        "torchtitan.components.loss": {
            "ChunkedLossWrapper": Configured,
            "CrossEntropyLoss": Configured,
        },
        "torchtitan.components.optimizer": {"default_adamw": Named},
        "torchtitan.config": {
            "CompileConfig": CompileConfig,
            "ParallelismConfig": ParallelismConfig,
            "TrainingConfig": TrainingConfig,
        },
        "torchtitan.distributed": {},
        "torchtitan.distributed.activation_checkpoint": {
            "FullAC": FullAC,
            "SelectiveAC": SelectiveAC,
        },
        "torchtitan.hf_datasets": {},
        "torchtitan.hf_datasets.text_datasets": {"HuggingFaceTextDataLoader": Configured},
        "torchtitan.models": {},
        "torchtitan.models.common": {},
        "torchtitan.models.common.config_utils": {"decoder_vocab_size": Named},
        "torchtitan.trainer": {"Trainer": Trainer},
        **{
            f"torchtitan.models.{name}": {"model_registry": Named}
            for name in ("llama3", "qwen3", "deepseek_v3")
        },
    }
    with patch.dict(
        sys.modules, {name: _module(name, **content) for name, content in modules.items()}
    ):
        yield
