"""Inputs of a model's blocks that have no gradient."""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.ir.block import INPUT, MEMORY
from shardwright.model.ir.model_graph import Model
from shardwright.model.tensors_without_gradient import has_backward


def with_constant_inputs(model: Model) -> Model:
    """The model with each block's `constant` set: inputs with no trained parameter before them.

    Computed as a fixed point: at first no input has a gradient; inputs behind a trained parameter
    are removed until nothing changes.
    """
    numbers = {run.name: i for i, run in enumerate(model.runs)}
    blocks = [
        replace(block, constant=(INPUT, MEMORY) if block.memory else (INPUT,))
        for block in model.blocks
    ]
    changed = True
    while changed:
        changed = False
        trained_runs = {i for i, run in enumerate(model.runs) if has_backward(blocks[run.block])}
        for i, run in enumerate(model.runs):
            sources = [numbers[name] for name in run.inputs]
            streams = {source for source in sources if not model.is_memory(i, source)} | (
                {i} if run.count > 1 else set()
            )
            gradient_sources = {INPUT: streams, MEMORY: set(sources) - streams}
            constant = tuple(
                name
                for name in blocks[run.block].constant
                if not gradient_sources[name] & trained_runs
            )
            if constant != blocks[run.block].constant:
                blocks[run.block] = replace(blocks[run.block], constant=constant)
                changed = True
    return replace(model, blocks=tuple(blocks))
