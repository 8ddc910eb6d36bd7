"""What a model is made of, in a few rows."""

from __future__ import annotations

from shardwright.model.graph import Model


def describe(model: Model) -> tuple[tuple[str, int, int], ...]:
    """(block name, how many copies, parameters of one copy) for every distinct block, in the order of its first run.

    Parameters are elements stored; tied weights count where they are stored, every expert counts.
    The sum of copies x parameters over the rows is `Model.num_parameters`.
    """
    counts: dict[int, int] = {}
    for run in model.runs:
        counts[run.block] = counts.get(run.block, 0) + run.count
    return tuple((model.blocks[index].name, count, model.blocks[index].num_parameters) for index, count in counts.items())
