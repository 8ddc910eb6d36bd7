"""The plan of a training step, prepared once and shared by all devices, and the batch of a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shardwright.execute.interpreter.sum_router_counts_for_balancing_loss import LaneBalance
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.stages.stage_messages import StageEdge
from shardwright.program.stages.stage_segments import StageParts
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane

Batch = Mapping[str, torch.Tensor]
"""By sequence: token ids (samples, positions), or features (samples, positions, width); ``labels``:
the text's labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStep:
    """The plan of a step, prepared once and shared by all devices.

    Args:
        stages, rows, edges: the plan's stages, rows of actions and edges between stages.
        lengths: number of positions, by sequence.
        widths: width of each run's output.
        first_sample: number of the first sample of each lane.
        scale: factor of every token's loss.
        slices: tokens of each slice, by lane (one slice if a sequence is not divided).
        balances: for each lane, the devices that count the load of its experts; empty without a
            load-balancing loss.
    """

    model: Model
    slices: tuple[tuple[int, ...], ...]
    lanes: tuple[Lane, ...]
    stages: tuple[tuple[StageParts, ...], ...]
    rows: ActionRows
    edges: tuple[tuple[StageEdge, ...], ...]
    lengths: Mapping[str, int]
    widths: tuple[int, ...]
    first_sample: tuple[int, ...]
    scale: float
    islands: Units | None
    balances: tuple[LaneBalance | None, ...] = ()
