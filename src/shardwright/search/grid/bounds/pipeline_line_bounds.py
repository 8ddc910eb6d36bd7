"""Bounds along the lines of members whose process groups lie unequally: the largest bound of a
member's lines, in B0 and in B1.

B0 is that of every member: a rank whose groups lie otherwise has other blocks (`patterns`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardwright import arrays
from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.closed_form_arrays import BY_MESH, Costs, Facts, Outer
from shardwright.cost.bounds.closed_form_bounds import bound_members
from shardwright.cost.bounds.longest_path import path_seconds
from shardwright.cost.step.grid_seconds import StepCosts, step_costs
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.grid.bounds.bound_arrays import Prepared, costs_in, jitters
from shardwright.search.grid.bounds.layer_spread_arrays import Pattern, line_pattern, stacked
from shardwright.search.grid.bounds.pipeline_lines import LineRows
from shardwright.search.grid.members.choice_columns import first_of_each
from shardwright.strategy.grid.grid import Grid


def raise_by_lines(problem: Problem, prepared: Prepared, facts: Facts, seconds: FloatArray) -> None:
    """Raise the bound of each member, (members,) seconds, to that of its slowest line."""
    rows = prepared.lines
    if rows is None:
        return
    costs, outers = costs_in(problem, rows.layers, rows.meshes), _line_outers(prepared, rows)
    for num_ways in sorted(set(outers.num_ways.tolist())):
        some = outers.take(outers.num_ways == num_ways)
        for turn in range(int(some.turn.max()) + 1):
            _raise(problem, prepared, rows, costs, facts, some.take(some.turn == turn), seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LineOuters:
    """Lines of outers. outer, line: places. num_ways: in which the groups of the line's devices
    lie. turn: its place among the lines of the outer with as many ways.
    """

    outer: IntArray
    line: IntArray
    num_ways: IntArray
    turn: IntArray

    def take(self, some: BoolArray) -> _LineOuters:
        return _LineOuters(
            outer=self.outer[some],
            line=self.line[some],
            num_ways=self.num_ways[some],
            turn=self.turn[some],
        )


def _line_outers(prepared: Prepared, rows: LineRows) -> _LineOuters:
    outer = np.flatnonzero(rows.of_outer >= 0)
    counts = np.array([len(one.ways) for one in rows.lines])[rows.of_outer[outer]]
    ways = [np.array([len(arrays.distinct(line)) for line in one.ways]) for one in rows.lines]
    each = np.repeat(outer, counts)
    line = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
    num_ways = (
        np.concatenate([ways[place] for place in rows.of_outer[outer].tolist()])
        if len(outer)
        else line
    )
    turns = [np.array([int((one[:at] == one[at]).sum()) for at in range(len(one))]) for one in ways]
    turn = (
        np.concatenate([turns[place] for place in rows.of_outer[outer].tolist()])
        if len(outer)
        else line
    )
    return _LineOuters(outer=each, line=line, num_ways=num_ways, turn=turn)


def _raise(
    problem: Problem,
    prepared: Prepared,
    rows: LineRows,
    costs: Costs,
    facts: Facts,
    some: _LineOuters,
    seconds: FloatArray,
) -> None:
    """Raise the bounds of members for lines of different outers with the same number of ways."""
    members, shards = prepared.members, len(prepared.members.space.of("shard"))
    outer, inner = members.outers.columns, members.inner
    patterns: list[Pattern] = []
    pattern, way = _patterns(problem, prepared, rows, some, patterns)
    pairs = rows.start[some.outer][:, None] + way
    layer, layer_at = _different(rows.layer_row[pairs])
    mesh, mesh_at = _different(rows.mesh_row[pairs])
    sets = np.arange(len(members.space.modules))[:, None, None] * rows.layer_rows
    each = np.arange(shards)[None, :, None]
    wide = _widened(
        costs,
        (layer[None] + sets).reshape(-1, way.shape[1]),
        (mesh[:, None] + each).reshape(-1, way.shape[1]),
    )
    first, last = members.start[some.outer], members.start[some.outer + 1]
    start = np.concatenate([[0], np.cumsum(last - first)])
    found, _ = bound_members(
        wide,
        stacked(patterns),
        Outer(
            layer=layer_at,
            mesh=mesh_at * shards,
            pattern=pattern,
            schedule=outer["schedule"][some.outer],
            microbatches=outer["microbatches"][some.outer],
            border=np.full_like(pattern, costs.border.shape[1] // 2),
            zero_list=inner.zero_key[some.outer],
            redo_list=inner.redo_key[some.outer],
            start=start,
            jitter=jitters(problem, members.meshes.devices)[outer["mesh"][some.outer]],
        ),
        inner.choices,
        facts._replace(layer_rows=len(layer)),
    )
    place = np.arange(int(start[-1])) + np.repeat(first - start[:-1], last - first)
    seconds[place] = np.maximum(seconds[place], found)


def _patterns(
    problem: Problem, prepared: Prepared, rows: LineRows, some: _LineOuters, patterns: list[Pattern]
) -> tuple[IntArray, IntArray]:
    """Place of each line's pattern in `patterns`, which grows; and (lines, ways) the ways of its
    devices in rising order.
    """
    members, tiers = prepared.members, len(problem.cluster.tiers())
    outer = members.outers.columns
    key = {"line of": rows.of_outer[some.outer], "line": some.line, "vpp": outer["vpp"][some.outer]}
    first, row = first_of_each(key)
    known: dict[tuple[object, ...], int] = {}
    pattern, ways = (
        np.zeros(len(first), dtype=np.int64),
        np.zeros((len(first), int(some.num_ways[0])), dtype=np.int64),
    )
    for place, at in enumerate(first.tolist()):
        lines, line = rows.lines[int(key["line of"][at])], int(some.line[at])
        ways[place], among = np.unique(lines.ways[line], return_inverse=True)
        behind, among = lines.behind[line], among.reshape(-1)
        layout = prepared.layouts[len(among), int(key["vpp"][at])]
        same = (id(layout), among.tobytes(), behind.tobytes())
        if same not in known:
            known[same] = len(patterns)
            patterns.append(
                line_pattern(problem, members.space, layout, ways=among, behind=behind, tiers=tiers)
            )
        pattern[place] = known[same]
    return pattern[row], ways[row]


def _different(rows: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct rows of (lines, ways), and each line's place among them."""
    first, place = first_of_each({str(way): column for way, column in enumerate(rows.T)})
    return rows[first], place


_BY_LAYER = ("forward", "backward", "selective", "full", "transient")
_OF_LAYER = ("logits", "logits_blocks", "overlap_buffers")
_OF_MESH = ("shard", "expert_shard", "norm", "passes", "communicators", "slowdown", "scales")


def _widened(costs: Costs, layer: IntArray, mesh: IntArray) -> Costs:
    """Price tables of lines, with the blocks of each way one after another.

    Args:
        layer, mesh: (rows, ways) rows of `costs`.
    """

    def side_by_side(table: FloatArray, rows: IntArray) -> FloatArray:
        return np.ascontiguousarray(np.concatenate([table[..., way] for way in rows.T]))

    return costs._replace(
        **{name: side_by_side(getattr(costs, name), layer) for name in (*_BY_LAYER, "saved")},
        **{name: side_by_side(getattr(costs, name), mesh) for name in BY_MESH},
        **{name: getattr(costs, name)[layer[:, 0]] for name in _OF_LAYER},
        **{name: getattr(costs, name)[mesh].min(axis=1) for name in _OF_MESH},
        tied=costs.tied[:, mesh].min(axis=2),
        # What a send takes is the same on all ranks but for copies over tp that are gathered behind
        # it.
        border=np.ascontiguousarray(costs.border[layer].min(axis=1)),
    )


def member_path(
    problem: Problem, prepared: Prepared, place: int, grid: Grid, costs: StepCosts
) -> float:
    """Tier B1 of a member: the longest path along the slowest of its lines.

    Args:
        costs: of the member, as if all its groups lay as the cheapest may.
    """
    rows, longest = prepared.lines, path_seconds(problem, grid, costs)
    at = -1 if rows is None else int(rows.of_outer[prepared.members.chosen(place).outer])
    if rows is None or at < 0:
        return longest
    lines, tiers = rows.lines[at], problem.cluster.tiers()
    ways = [step_costs(problem, grid, priced) for priced in prepared.priced_by_way(place)]
    for line, behind, before in zip(lines.ways, lines.behind, lines.before, strict=True):
        crossed = np.stack([behind, before])[:, :, None] == np.arange(len(tiers))
        longest = max(longest, path_seconds(problem, grid, _along(ways, line), crossed=crossed))
    return longest


_BY_CHUNK = ("forward_s", "backward_s", "weight_s", "gather_s", "reduce_s", "tied_s")
_BY_RANK = ("optimizer_s", "update_s", "after_s")


def _along(ways: list[StepCosts], line: IntArray) -> StepCosts:
    """Costs of one line (pp,): of each rank those of the way in which its groups lie."""
    chunk, rank = np.arange(len(ways[0].contents)), np.arange(len(line))
    way = line[chunk % len(line)]
    own: dict[str, Any] = {
        name: np.stack([getattr(one, name) for one in ways])[way, chunk] for name in _BY_CHUNK
    }
    own |= {name: np.stack([getattr(one, name) for one in ways])[line, rank] for name in _BY_RANK}
    return replace(
        ways[0],
        **own,
        border_s=np.min([ways[one].border_s for one in arrays.distinct(line)], axis=0),
        # Lines reduce at different times, and one that is ahead computes and sends beside it later
        # than along the line alone.
        slowdown=1.0,
        shares=np.zeros_like(ways[0].shares),
    )
