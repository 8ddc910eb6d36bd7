"""Numbers of legal and distinct strategies of each mesh, without listing them."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.search.grid.members.enumerate_members import chunked, switched
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import distinct, extended
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.members.legal_degrees_and_axis_orders import MemberCounts, MeshRows
from shardwright.search.grid.members.zero_and_recompute_choices import redo_counts, zero_counts
from shardwright.strategy.grid.grid_rules import GridFacts


def count_members(
    space: Space,
    facts: GridFacts,
    meshes: MeshRows,
    *,
    zero_stages: tuple[int, ...],
    zero_with_pipeline: int,
) -> MemberCounts:
    """Number of legal and distinct members of each mesh, as a product of independent choices.

    The factors are switches (sp, ulysses, gather), pipelines and memory choices: no rule reads two
    of these.

    Args:
        zero_stages: ZeRO stages of the runtime.
        zero_with_pipeline: highest ZeRO stage with a pipeline.
    """
    mesh = meshes.columns
    switches, switch_copies = _switch_counts(space, facts, meshes)
    shapes, shape = distinct({name: mesh[name] for name in ("pp", "dp")})
    ones_of_shape = np.ones_like(shapes["pp"])
    rows = extended(
        {"mesh": np.arange(len(ones_of_shape)), "copies": ones_of_shape} | shapes,
        "microbatch",
        space.of("mbs"),
        facts,
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
    pipelines = _summed(outer["mesh"], redo[0], len(ones_of_shape))[shape]
    pipeline_copies = _summed(outer["mesh"], outer["copies"] * redo[1], len(ones_of_shape))[shape]
    return MemberCounts(
        legal=mesh["copies"] * switch_copies * pipeline_copies * zero[1] * offloads,
        distinct=switches * pipelines * zero[0] * offloads,
    )


def _switch_counts(space: Space, facts: GridFacts, meshes: MeshRows) -> tuple[IntArray, IntArray]:
    """(meshes,) numbers of distinct and of raw legal sp, ulysses and gather combinations."""
    axes = ("tp", "cp", "ep", "etp", *(("dp", "order") if facts.experts else ()))
    shapes, shape = distinct({name: meshes.columns[name] for name in axes})
    count = len(shapes["tp"])
    columns = switched(space, facts, shapes | {"copies": np.ones(count, dtype=np.int64)})
    return _summed(columns["mesh"], np.ones_like(columns["copies"]), count)[shape], _summed(
        columns["mesh"], columns["copies"], count
    )[shape]


def _summed(place: IntArray, values: IntArray, count: int) -> IntArray:
    """(count,) sum of the values at each place."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, place, values)
    return sums
