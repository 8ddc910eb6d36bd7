"""Dependencies between the actions of a plan, independent of the order of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from shardwright.arrays import IntArray, distinct_rows
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.schedules.action_order_arrays import B, F, I, R, W
from shardwright.strategy.plan.plan import Plan

Edges = Sequence[tuple[tuple[int, int], ...]]
"""By lane of the plan, its (from stage, to stage) pairs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionGraph:
    """Actions of a plan as nodes, each once, and the dependencies between them.

    Each once however many rows hold it.

    Args:
        node: (actions,) node of each action of the rows.
        position: (nodes,) first action of each node.
        source, target: (edges,) nodes; target waits for source.
    """

    node: IntArray
    position: IntArray
    source: IntArray
    target: IntArray


def chains(plan: Plan) -> Edges:
    """By lane, (stage, next stage) edges of a chain of all its stages."""
    return tuple(tuple(pairwise(range(len(lane.stages)))) for lane in plan.lanes)


def action_graph(plan: Plan, rows: ActionRows, *, edges: Edges | None = None) -> ActionGraph:
    """Dependency graph of the actions of `rows`; `edges` by lane, None = each lane is a chain.

    F waits for F of the stages before. A backward (B, I, or a W that has no I) waits for the
    forward of its own stage, or its R, and for the input gradients (I or B) of the stages behind; W
    waits for its I, R for its F. Of a microbatch cut into slices F waits for the slice before and a
    backward for the slice behind. A stage that runs once for several microbatches is waited for by
    all of them. An action that no row holds has no edges.

    Args:
        edges: stages that feed one another, by lane; None = each lane is a chain.
    """
    edges = chains(plan) if edges is None else edges
    columns = [
        column.astype(np.int64)
        for column in (rows.lane, rows.chunk, rows.kind, rows.microbatch, rows.slice)
    ]
    key = np.zeros(len(rows.kind), np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    _, position, node = np.unique(key, return_index=True, return_inverse=True)
    lane, chunk, kind, microbatch, part = (column[position] for column in columns)
    edge_arrays: list[IntArray] = []
    for i, lane_plan in enumerate(plan.lanes):
        nodes_of_lane = np.flatnonzero(lane == i)
        if not len(nodes_of_lane):
            continue
        place = np.full(
            (
                5,
                len(lane_plan.stages),
                max(1, lane_plan.microbatches),
                max(1, len(lane_plan.slices)),
            ),
            -1,
            np.int64,
        )
        place[
            kind[nodes_of_lane],
            chunk[nodes_of_lane],
            microbatch[nodes_of_lane],
            part[nodes_of_lane],
        ] = nodes_of_lane
        every = np.array([max(1, stage.every) for stage in lane_plan.stages])
        turn = np.arange(place.shape[2])[None, :] // every[:, None]
        edge_arrays += _lane_edges(
            place[:, np.arange(len(lane_plan.stages))[:, None], turn], edges[i]
        )
    pairs = distinct_rows(np.concatenate([*edge_arrays, np.zeros((0, 2), np.int64)]))
    return ActionGraph(
        node=node.reshape(-1),
        position=position,
        source=pairs[:, 0].copy(),
        target=pairs[:, 1].copy(),
    )


def _lane_edges(place: IntArray, edges: Iterable[tuple[int, int]]) -> list[IntArray]:
    """(source, target) pairs of nodes of one lane: each target waits for its source.

    Args:
        place: (kinds, stages, microbatches, slices) nodes, -1 where there is none.
    """
    inputs = np.where(place[B] >= 0, place[B], place[I])
    backward = np.where(inputs >= 0, inputs, place[W])
    inside_stages = [
        _existing_pairs(place[F], place[R]),
        _existing_pairs(np.where(place[R] >= 0, place[R], place[F]), backward),
        _existing_pairs(inputs, place[W]),
        _existing_pairs(place[F][..., :-1], place[F][..., 1:]),
        _existing_pairs(backward[..., 1:], backward[..., :-1]),
    ]
    before, behind = np.array(tuple(edges), np.int64).reshape(-1, 2).T
    return [
        *inside_stages,
        _existing_pairs(place[F][before], place[F][behind]),
        _existing_pairs(inputs[behind], backward[before]),
    ]


def _existing_pairs(source: IntArray, target: IntArray) -> IntArray:
    """(n, 2) pairs (source, target), element by element, without pairs that have a -1."""
    both = np.stack([source.reshape(-1), target.reshape(-1)], axis=1)
    return both[(both >= 0).all(axis=1)]
