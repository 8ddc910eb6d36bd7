"""Edges between the stages of a lane of a plan, with the messages that cross them."""

from __future__ import annotations

from collections.abc import Hashable

from shardwright.cost.network.networks_of_plan_devices import plan_units
from shardwright.program.stages.stage_messages import (
    LaneEdge,
    Messages,
    counted_from,
    edge_extents,
    edge_messages,
    edge_segments,
    stage_edges,
)
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.training_problem import Problem


def lane_edges(problem: Problem, lane: tuple[StageParts, ...]) -> tuple[LaneEdge, ...]:
    """Edges between the stages of one pipeline (lane), with their forward and backward messages."""
    model, job = problem.model, problem.job
    islands = plan_units(problem)[0]
    edges = []
    messages_of_form: dict[Hashable, tuple[Messages, Messages]] = {}
    for edge in stage_edges(lane, model=model):
        block, ends = (
            model.blocks[model.runs[edge.run].block],
            (lane[edge.source], lane[edge.target]),
        )
        segments = edge_segments(edge, *ends, model=model)
        base, islands_seen = islands.seen_from(
            min(ends[0].base, ends[1].base), (stage.devices.last for stage in ends)
        )
        placed = [(id(s.cells), stage.base - base) for s, stage in zip(segments, ends, strict=True)]
        form_key = (edge.run, edge.operator, islands_seen.first, islands_seen.size, *placed)
        if form_key not in messages_of_form:
            messages_of_form[form_key] = edge_messages(
                *ends,
                segments=segments,
                extents=edge_extents(edge, model=model),
                length=job.tokens(block.sequence) or job.sequence_length,
                islands=islands,
                minimal=problem.runtime.p2p_scatter_gather,
            )
        forward, backward = [
            counted_from(messages, base) for messages in messages_of_form[form_key]
        ]
        edges.append(LaneEdge(lane=lane[0].lane, edge=edge, forward=forward, backward=backward))
    return tuple(edges)
