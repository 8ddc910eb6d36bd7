"""Numbers of strategies of meshes, without listing them."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.search.grid.members.choice_columns import distinct, extended
from shardwright.search.grid.members.declared_space import Space
from shardwright.search.grid.members.device_meshes import MemberCounts, Meshes
from shardwright.search.grid.members.member_arrays import chunked, switched
from shardwright.search.grid.members.memory_choices import redo_counts, zero_counts
from shardwright.strategy.grid.grid_rules import GridFacts


def count_members(
    space: Space,
    facts: GridFacts,
    meshes: Meshes,
    *,
    zero_stages: tuple[int, ...],
    zero_with_pipeline: int,
) -> MemberCounts:
    """Number of members of each mesh: the product of its switches, pipelines and memory choices, as
    no rule reads two of these.

    Args:
        zero_stages: those of the runtime;
        zero_with_pipeline: the highest beside a pipeline.
    """
    mesh = meshes.columns
    switches, switch_copies = _switches(space, facts, meshes)
    kinds, kind = distinct({name: mesh[name] for name in ("pp", "dp")})
    ones = np.ones_like(kinds["pp"])
    rows = extended(
        {"mesh": np.arange(len(ones)), "copies": ones} | kinds, "microbatch", space.of("mbs"), facts
    )
    outer = chunked(space, facts, rows).columns
    offloads = len(space.of("offload"))
    zero, redo = (
        zero_counts(
            space,
            mesh,
            experts=facts.experts > 0,
            zero_stages=zero_stages,
            zero_with_pipeline=zero_with_pipeline,
            lone=facts.lone_stages,
        ),
        redo_counts(space, facts, outer["largest"]),
    )
    pipelines = _summed(outer["mesh"], redo[0], len(ones))[kind]
    pipeline_copies = _summed(outer["mesh"], outer["copies"] * redo[1], len(ones))[kind]
    return MemberCounts(
        legal=mesh["copies"] * switch_copies * pipeline_copies * zero[1] * offloads,
        distinct=switches * pipelines * zero[0] * offloads,
    )


def _switches(space: Space, facts: GridFacts, meshes: Meshes) -> tuple[IntArray, IntArray]:
    """(meshes,) numbers of legal switches, and of the combinations of values that they stand
    for.
    """
    axes = ("tp", "cp", "ep", "etp", *(("dp", "order") if facts.experts else ()))
    kinds, kind = distinct({name: meshes.columns[name] for name in axes})
    count = len(kinds["tp"])
    columns = switched(space, facts, kinds | {"copies": np.ones(count, dtype=np.int64)})
    return _summed(columns["mesh"], np.ones_like(columns["copies"]), count)[kind], _summed(
        columns["mesh"], columns["copies"], count
    )[kind]


def _summed(place: IntArray, values: IntArray, count: int) -> IntArray:
    """(count,) the sum of the values at each place."""
    found = np.zeros(count, dtype=np.int64)
    np.add.at(found, place, values)
    return found
