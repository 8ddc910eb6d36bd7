"""Bounds B0 and B1 of members with unequal process groups, along each chain of devices.

A chain, or line, has one device of each pipeline rank; the bound of a member is the maximum over
its lines. B0 is the same function as for every member: a block on a rank with other group
placements is another block (`chunk_block_and_send_patterns`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardwright import arrays
from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.closed_form_bounds import bound_members
from shardwright.cost.bounds.compiled_bound_array_records import (
    BY_MESH,
    Costs,
    Outer,
    ProblemNumbers,
)
from shardwright.cost.bounds.longest_path import path_seconds
from shardwright.cost.step.strategy_task_seconds import StepCosts, step_costs
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.bound_kernel_inputs import costs_in
from shardwright.search.grid.bounds.chunk_block_and_send_patterns import (
    Pattern,
    line_pattern,
    stacked,
)
from shardwright.search.grid.bounds.member_price_tables import Prepared
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import jitters
from shardwright.search.grid.bounds.table_rows_of_chains_with_unequal_groups import LineRows
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import first_of_each
from shardwright.strategy.grid.parallelism_grid import Grid


def raise_by_lines(
    problem: Problem, prepared: Prepared, facts: ProblemNumbers, seconds: FloatArray
) -> None:
    """Raise the B0 `seconds` of each member in place to that of its slowest chain of devices."""
    lines = prepared.lines
    if lines is None:
        return
    costs, outers = costs_in(problem, lines.layers, lines.meshes), _line_outers(prepared, lines)
    for num_ways in sorted(set(outers.num_ways.tolist())):
        group = outers.take(outers.num_ways == num_ways)
        for number in range(int(group.turn.max()) + 1):
            _raise_by_one_line(
                problem, prepared, lines, costs, facts, group.take(group.turn == number), seconds
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LineOuters:
    """Pairs of an outer choice and one of its lines (chains of devices), as arrays.

    Args:
        outer, line: places of the outer, and of the line among the outer's lines.
        num_ways: number of distinct group placements along the line.
        turn: place among the outer's lines with the same `num_ways`.
    """

    outer: IntArray
    line: IntArray
    num_ways: IntArray
    turn: IntArray

    def take(self, is_kept: BoolArray) -> _LineOuters:
        """Pairs where `is_kept` is True."""
        return _LineOuters(
            outer=self.outer[is_kept],
            line=self.line[is_kept],
            num_ways=self.num_ways[is_kept],
            turn=self.turn[is_kept],
        )


def _line_outers(prepared: Prepared, rows: LineRows) -> _LineOuters:
    """List every (outer, line) pair of the outers with unequal groups."""
    outer = np.flatnonzero(rows.of_outer >= 0)
    counts = np.array([len(lines.ways) for lines in rows.lines])[rows.of_outer[outer]]
    ways = [np.array([len(arrays.distinct(line)) for line in lines.ways]) for lines in rows.lines]
    outer_of = np.repeat(outer, counts)
    line = np.arange(len(outer_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    num_ways = (
        np.concatenate([ways[place] for place in rows.of_outer[outer].tolist()])
        if len(outer)
        else line
    )
    turns = [
        np.array([int((counts[:at] == counts[at]).sum()) for at in range(len(counts))])
        for counts in ways
    ]
    turn = (
        np.concatenate([turns[place] for place in rows.of_outer[outer].tolist()])
        if len(outer)
        else line
    )
    return _LineOuters(outer=outer_of, line=line, num_ways=num_ways, turn=turn)


def _raise_by_one_line(
    problem: Problem,
    prepared: Prepared,
    rows: LineRows,
    costs: Costs,
    facts: ProblemNumbers,
    pairs: _LineOuters,
    seconds: FloatArray,
) -> None:
    """Raise member bounds in place by one line of each outer, all with equally many placements."""
    members, shards = prepared.members, len(prepared.members.space.of("shard"))
    outer, inner = members.outers.columns, members.inner
    patterns: list[Pattern] = []
    pattern, way = _patterns(problem, prepared, rows, pairs, patterns)
    placement_rows = rows.start[pairs.outer][:, None] + way
    layer, layer_at = _distinct_rows(rows.layer_row[placement_rows])
    mesh, mesh_at = _distinct_rows(rows.mesh_row[placement_rows])
    sets = np.arange(len(members.space.modules))[:, None, None] * rows.layer_rows
    shard_options = np.arange(shards)[None, :, None]
    line_costs = _line_costs_table(
        costs,
        (layer[None] + sets).reshape(-1, way.shape[1]),
        (mesh[:, None] + shard_options).reshape(-1, way.shape[1]),
    )
    first, last = members.start[pairs.outer], members.start[pairs.outer + 1]
    start = np.concatenate([[0], np.cumsum(last - first)])
    bounds, _ = bound_members(
        line_costs,
        stacked(patterns),
        Outer(
            layer=layer_at,
            mesh=mesh_at * shards,
            pattern=pattern,
            schedule=outer["schedule"][pairs.outer],
            microbatches=outer["microbatches"][pairs.outer],
            border=np.full_like(pattern, costs.border.shape[1] // 2),
            zero_list=inner.zero_key[pairs.outer],
            redo_list=inner.redo_key[pairs.outer],
            start=start,
            jitter=jitters(problem, members.meshes.devices)[outer["mesh"][pairs.outer]],
        ),
        inner.choices,
        facts._replace(layer_rows=len(layer)),
    )
    place = np.arange(int(start[-1])) + np.repeat(first - start[:-1], last - first)
    seconds[place] = np.maximum(seconds[place], bounds)


def _patterns(
    problem: Problem,
    prepared: Prepared,
    rows: LineRows,
    pairs: _LineOuters,
    patterns: list[Pattern],
) -> tuple[IntArray, IntArray]:
    """Pattern number of each line, appended to `patterns` if new, and its placements.

    Placements are (lines, ways) in ascending order.
    """
    members, tiers = prepared.members, len(problem.cluster.tiers())
    outer = members.outers.columns
    key = {
        "line of": rows.of_outer[pairs.outer],
        "line": pairs.line,
        "vpp": outer["vpp"][pairs.outer],
    }
    first, row = first_of_each(key)
    pattern_numbers: dict[tuple[object, ...], int] = {}
    pattern, ways = (
        np.zeros(len(first), dtype=np.int64),
        np.zeros((len(first), int(pairs.num_ways[0])), dtype=np.int64),
    )
    for place, at in enumerate(first.tolist()):
        lines, line = rows.lines[int(key["line of"][at])], int(pairs.line[at])
        ways[place], way_of_rank = np.unique(lines.ways[line], return_inverse=True)
        behind, way_of_rank = lines.behind[line], way_of_rank.reshape(-1)
        layout = prepared.layouts[len(way_of_rank), int(key["vpp"][at])]
        pattern_key = (id(layout), way_of_rank.tobytes(), behind.tobytes())
        if pattern_key not in pattern_numbers:
            pattern_numbers[pattern_key] = len(patterns)
            patterns.append(
                line_pattern(
                    problem, members.space, layout, ways=way_of_rank, behind=behind, tiers=tiers
                )
            )
        pattern[place] = pattern_numbers[pattern_key]
    return pattern[row], ways[row]


def _distinct_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct rows of (lines, ways), and each line's place among them."""
    first, place = first_of_each({str(way): column for way, column in enumerate(rows.T)})
    return rows[first], place


_BY_LAYER = ("forward", "backward", "selective", "full", "transient")
_OF_LAYER = ("logits", "logits_blocks", "overlap_buffers")
_OF_MESH = ("shard", "expert_shard", "norm", "passes", "communicators", "slowdown", "scales")


def _line_costs_table(costs: Costs, layer_rows: IntArray, mesh_rows: IntArray) -> Costs:
    """Price tables of lines by (rows, ways) rows of `costs`, all placements' blocks side by side.

    Args:
        layer, mesh: (rows, ways) rows of `costs`.
    """

    def side_by_side(table: FloatArray, rows: IntArray) -> FloatArray:
        """Concatenate a table's columns of each placement along the block axis."""
        return np.ascontiguousarray(np.concatenate([table[..., way] for way in rows.T]))

    return costs._replace(
        **{name: side_by_side(getattr(costs, name), layer_rows) for name in (*_BY_LAYER, "saved")},
        **{name: side_by_side(getattr(costs, name), mesh_rows) for name in BY_MESH},
        **{name: getattr(costs, name)[layer_rows[:, 0]] for name in _OF_LAYER},
        **{name: getattr(costs, name)[mesh_rows].min(axis=1) for name in _OF_MESH},
        tied=costs.tied[:, mesh_rows].min(axis=2),
        # A send takes the same time on all ranks, except for gathers over tp that follow it.
        border=np.ascontiguousarray(costs.border[layer_rows].min(axis=1)),
    )


def member_path(
    problem: Problem, prepared: Prepared, place: int, grid: Grid, costs: StepCosts
) -> float:
    """Longest-path bound (B1) of a member in seconds, along its slowest chain of devices.

    Args:
        costs: costs of the member with the cheapest placement of each group.
    """
    line_rows, longest = prepared.lines, path_seconds(problem, grid, costs)
    lines_place = (
        -1 if line_rows is None else int(line_rows.of_outer[prepared.members.chosen(place).outer])
    )
    if line_rows is None or lines_place < 0:
        return longest
    lines, tiers = line_rows.lines[lines_place], problem.cluster.tiers()
    costs_by_way = [step_costs(problem, grid, priced) for priced in prepared.priced_by_way(place)]
    for line, behind, before in zip(lines.ways, lines.behind, lines.before, strict=True):
        crossed = np.stack([behind, before])[:, :, None] == np.arange(len(tiers))
        longest = max(
            longest,
            path_seconds(problem, grid, _costs_along_line(costs_by_way, line), crossed=crossed),
        )
    return longest


_BY_CHUNK = ("forward_s", "backward_s", "weight_s", "gather_s", "reduce_s", "tied_s")
_BY_RANK = ("optimizer_s", "update_s", "after_s")


def _costs_along_line(ways: list[StepCosts], way_of_rank: IntArray) -> StepCosts:
    """Costs along a chain of devices: each rank's in its own way of placing its groups."""
    chunk, rank = np.arange(len(ways[0].contents)), np.arange(len(way_of_rank))
    way = way_of_rank[chunk % len(way_of_rank)]
    line_costs: dict[str, Any] = {
        name: np.stack([getattr(costs, name) for costs in ways])[way, chunk] for name in _BY_CHUNK
    }
    line_costs |= {
        name: np.stack([getattr(costs, name) for costs in ways])[way_of_rank, rank]
        for name in _BY_RANK
    }
    return replace(
        ways[0],
        **line_costs,
        border_s=np.min([ways[costs].border_s for costs in arrays.distinct(way_of_rank)], axis=0),
        # Lines reduce at different times, so compute and sends may overlap a reduction later than
        # along the line alone: the bound has no slowdown and no shares.
        slowdown=1.0,
        shares=np.zeros_like(ways[0].shares),
    )
