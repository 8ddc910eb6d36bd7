"""Runtime of a problem without fused tensor-parallel overlap where a group leaves NVLink."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import distinct
from shardwright.cost.network.networks_of_plan_devices import plan_units
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_cuts_in_placement_tree import (
    StageCells,
    regular_levels,
    row_of,
)
from shardwright.program.layout.group_devices_by_parts_of_dims import (
    group_and_first_members,
    projection,
)
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import TpOverlap

_PRODUCTS: Final = frozenset({OperatorClass.ATTN, OperatorClass.MLP, OperatorClass.SSM})
_APART: Final = frozenset({Dim.BATCH, Dim.SEQUENCE, Dim.REPLICATE})
"""Dims whose parts are of different tensor-parallel groups."""


def with_overlap_of(problem: Problem, stages: Iterable[StageParts]) -> Problem:
    """`problem`, without fused overlap if a tensor-parallel group of the stages leaves NVLink."""
    if problem.runtime.tp_overlap is not TpOverlap.FUSED:
        return problem
    islands = plan_units(problem)[0]
    placed_cells: dict[Hashable, tuple[StageCells, int, Units]] = {}
    for stage in stages:
        first, islands_seen = islands.seen_from(stage.base, (stage.devices.last,))
        for segment in stage.segments:
            placed_cells[
                id(segment.cells), stage.base - first, islands_seen.first, islands_seen.size
            ] = (
                segment.cells,
                stage.base - first,
                islands_seen,
            )
    return (
        without_fused_overlap(problem)
        if any(_leaves_island(*placed) for placed in placed_cells.values())
        else problem
    )


def without_fused_overlap(problem: Problem) -> Problem:
    """`problem` with fused tensor-parallel overlap replaced by overlap of input gradients.

    The overlap that such a runtime has where a tensor-parallel group leaves its NVLink domain.

    Transformer Engine's userbuffers are mapped into the memory of all members, which only NVLink
    allows: its maintainers answer that there is no overlap over nodes (NVIDIA/TransformerEngine
    issue 1071; pull request 1470 for domains of several nodes). Megatron's own overlap remains: the
    collective of an input's gradient beside the weight's.
    """
    return (
        _with_dgrad_overlap(Same(problem))
        if problem.runtime.tp_overlap is TpOverlap.FUSED
        else problem
    )


@lru_cache(maxsize=16)
def _with_dgrad_overlap(problem: Same[Problem]) -> Problem:
    """`problem` under a runtime that overlaps collectives with weight gradients only (cached)."""
    return replace(
        problem.value, runtime=replace(problem.value.runtime, tp_overlap=TpOverlap.DGRAD)
    )


@lru_cache(maxsize=1024)
def _leaves_island(cells: StageCells, first_device: int, islands: Units) -> bool:
    """True if some tensor-parallel group of a stage lies in several NVLink islands.

    Devices that share samples and positions, and cut GEMMs between them.
    """
    for klass in _PRODUCTS & cells.cells.keys():
        levels = regular_levels(cells.splits.get(klass))
        if levels is not None and len(islands.first) == 1:
            inside, outside = group_and_first_members(levels, frozenset(Dim) - _APART)
            first_places = distinct(
                (outside.array + row_of(cells.cells[klass]).first + first_device) % islands.size[0]
            )
            if (first_places + inside.by_number()[-1] >= islands.size[0]).any():
                return True
            continue
        groups = projection(cells, klass, _APART)
        island = islands.of(groups.devices + first_device)
        island_of_group = np.zeros(len(groups.cells), dtype=np.int64)
        island_of_group[groups.number] = island
        if (island != island_of_group[groups.number]).any():
            return True
    return False
