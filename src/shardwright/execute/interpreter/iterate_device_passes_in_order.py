"""Order of one device's forward and backward passes in a step, and the layers of each pass."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.execute.interpreter.stage_layers import StageNode, stage_nodes
from shardwright.model.ir.model_graph import Model
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind

Turn = tuple[int, int, int, int]
"""(lane, chunk, microbatch, slice) of an action."""


def actions(device: int, rows: ActionRows) -> Iterator[tuple[TaskKind, Turn]]:
    """Iterate over a device's actions of a step: (kind, (lane, chunk, microbatch, slice))."""
    row = next(i for i, devices in enumerate(rows.devices) if device in devices)
    for action in range(int(rows.row_start[row]), int(rows.row_start[row + 1])):
        place = (
            int(rows.lane[action]),
            int(rows.chunk[action]),
            int(rows.microbatch[action]),
            int(rows.slice[action]),
        )
        yield TaskKind(int(rows.kind[action])), place


def weight_passes(
    device: int, rows: ActionRows, stages: tuple[tuple[StageParts, ...], ...], model: Model
) -> Iterator[StageNode]:
    """Iterate over the layers of all passes that compute weight gradients on a device in a step."""
    for kind, (lane, chunk, *_) in actions(device, rows):
        if kind in (TaskKind.B, TaskKind.W):
            yield from stage_nodes(stages[lane][chunk], model)
