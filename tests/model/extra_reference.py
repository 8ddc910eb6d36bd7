"""What the tests of state-space, hybrid, newest, encoder-decoder and vision families share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardwright.errors import ModelError
from shardwright.model.families.huggingface_config import load_config, model_from_config
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator

CONFIGS = Path(__file__).parent / "configs"


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config


def model_of(name: str) -> Model:
    return load_config(CONFIGS / f"{name}.json")


def changed(name: str, **fields: Any) -> Model:
    """The model of a configuration with some fields replaced."""
    return model_from_config({**config_of(name), **fields}, name=name)


def refusal(name: str, **fields: Any) -> str:
    """The message of the error that a changed configuration gives; empty if it gives a model."""
    try:
        changed(name, **fields)
    except ModelError as error:
        return str(error)
    return ""


def block_of(model: Model, name: str) -> Block:
    return next(block for block in model.blocks if block.name == name)


def operator_of(block: Block, name: str) -> Operator:
    return next(operator for operator in block.operators if operator.name == name)


def pattern(model: Model) -> list[tuple[str, int]]:
    """Block name and count of every run."""
    return [(model.blocks[run.block].name, run.count) for run in model.runs]


def main_parameters(model: Model) -> int:
    """Parameters without prediction modules."""
    return sum(
        model.blocks[run.block].num_parameters * run.count
        for run in model.runs
        if not run.name.startswith("mtp")
    )
