"""Seconds and bytes of every device family of every stage of a general plan.

From the same tables and terms as a grid's.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from shardwright.cost.buffers.logits_buffers import logits_bytes
from shardwright.cost.network.networks_of_plan_devices import kind_problem
from shardwright.cost.part_phase_recompute_keys import MODES
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import sums_problem
from shardwright.cost.step.device_family_synchronisation import (
    HeldSegment,
    Shape,
    SynchronisedDevice,
    synchronisation_of_device,
)
from shardwright.cost.step.stage_action_seconds import FamilyCosts, slice_lengths
from shardwright.cost.step.strategy_task_seconds import StepCosts, compose_step
from shardwright.cost.tables.apply_recompute_and_offload_policy import is_on_host
from shardwright.cost.tables.block_layer_mesh_table_classes import OF_BLOCKS, BlockTable, LayerTable
from shardwright.cost.tables.grid_rows_and_memory_settings import MemoryChoices, TableRows
from shardwright.cost.tables.pipeline_chunk_layout import (
    ChunkLayout,
    has_trained,
    is_unit,
)
from shardwright.cost.tables.plan_block_costs import block_on_device
from shardwright.model.ir.operator import OperatorKind
from shardwright.model.tensors_without_gradient import has_backward
from shardwright.program.block.operator_cuts_on_one_device_of_plan import CellStructure
from shardwright.program.identity_cache_keys import Same
from shardwright.program.stages.held_parameters import Holdings
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.program.training_problem import Problem
from shardwright.program.zero_sharding import shard_rules
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy, Keep


def family_costs(
    problem: Problem,
    plan: Plan,
    stage: StageParts,
    family: int,
    *,
    holdings: Holdings,
    shape: Shape,
    alike: Hashable = None,
) -> FamilyCosts:
    """Seconds and bytes of one family of identical devices of one stage, for each sequence slice.

    Args:
        holdings: see `plan_holdings`.
        shape: of the whole plan.
        alike: all inputs of the costs beside the problem, by which synchronisation over devices is
            shared with problems that price it alike; None = priced anew.
    """
    device = stage.families[family][0]
    problem_of_kind = kind_problem(problem, device)
    holdings_of_segments = [
        holdings.get((stage.lane, stage.chunk, n, device), ()) for n in range(len(stage.segments))
    ]
    rules = shard_rules(plan)
    held_segments = [
        HeldSegment(segment, items)
        for segment, items in zip(stage.segments, holdings_of_segments, strict=True)
    ]
    lengths = slice_lengths(plan, stage.lane, length=problem.job.sequence_length)
    summed = SynchronisedDevice(
        alike=object() if alike is None else (Same(sums_problem(problem)), alike),
        problem=sums_problem(problem),
        stage=stage,
        device=device,
        here=held_segments,
        rules=rules,
        shape=shape,
    )
    coupled: set[int] = {device}
    steps = []
    for number in range(len(lengths)):
        cut = lengths[: number + 1] if len(lengths) > 1 else None
        steps.append(_compose(problem_of_kind, problem, summed, cut=cut, coupled=coupled))
    local = device - stage.base
    runs = frozenset(
        f"{s.block.name}.{o.name}"
        for s in stage.segments
        for o in s.block.operators
        if local in s.cells.cells.get(o.klass, {})
    )
    return FamilyCosts(
        slices=tuple(steps),
        coupled=tuple(sorted(d - stage.base for d in coupled)),
        operators=runs,
    )


def _compose(
    problem_of_kind: Problem,
    problem: Problem,
    summed: SynchronisedDevice,
    *,
    cut: tuple[int, ...] | None,
    coupled: set[int],
) -> StepCosts:
    """Costs of one chunk's step for `cut`'s last slice; devices waited for join `coupled`."""
    stage, device, held_segments = summed.stage, summed.device, summed.here
    tables, buffers = [], []
    for part in held_segments:
        table, buffer_bytes, joined = block_on_device(problem, stage, part.segment, device, cut)
        tables.append(table)
        buffers.append(buffer_bytes)
        coupled |= {d + stage.base for d in joined}
    length = cut[-1] if cut is not None else problem_of_kind.job.sequence_length
    layers = _layer_table(
        problem_of_kind, stage, device, held_segments, tables, buffers, length=length
    )
    counts = np.array([[p.segment.count for p in held_segments]], dtype=np.int64)
    layout = ChunkLayout(
        contents=(tuple((i, p.segment.count) for i, p in enumerate(held_segments)),),
        counts=counts,
        layer=np.array([p.segment.block.is_layer for p in held_segments], dtype=np.bool_),
        unit=np.array([is_unit(p.segment.block) for p in held_segments], dtype=np.bool_),
        head=np.array([p.segment.block.has_head for p in held_segments], dtype=np.bool_),
        first=np.zeros(1, dtype=np.int64),
        turned=np.array(
            [
                max(
                    (i for i, p in enumerate(held_segments) if has_backward(p.segment.block)),
                    default=max(len(held_segments) - 1, 0),
                )
            ],
            dtype=np.int64,
        ),
        reduced=np.array(
            [next((i for i, p in enumerate(held_segments) if has_trained(p.segment.block)), 0)],
            dtype=np.int64,
        ),
        sent=np.zeros(1, dtype=np.int64),
        streams=1,
        by_rank=counts,
        pp=1,
        vpp=1,
    )
    modes = np.zeros((1, len(held_segments), len(MODES)), dtype=np.int64)
    for i, part in enumerate(held_segments):
        modes[0, i, recompute_mode(part.segment.keeps)] = part.segment.count
    strongest = max((recompute_mode(p.segment.keeps) for p in held_segments), default=0)
    zero, meshes = synchronisation_of_device(summed)
    choices = MemoryChoices(
        zero=zero, offload=summed.rules.lanes[stage.lane].offload, modes=modes, mode=strongest
    )
    return compose_step(
        problem_of_kind,
        choices,
        TableRows(layers=layers, layer_row=0, meshes=meshes, mesh_row=0, layout=layout),
    )


def recompute_mode(keeps: tuple[Keep, ...]) -> int:
    """Index into MODES of a segment's activation policy: 3 host, 2 full, 1 core, 0 otherwise.

    3 if the whole block waits in host memory, 2 if it is recomputed, 1 if the core is, else 0
    (single operators and shares: see `kept_variant`).
    """
    if any(is_on_host(keep) for keep in keeps):
        return MODES.index("host")
    names = {
        name for keep in keeps if keep.how is ActivationPolicy.RECOMPUTE for name in keep.operators
    }
    return 2 if "full" in names else 1 if names == {"core"} else 0


def _layer_table(
    problem_of_kind: Problem,
    stage: StageParts,
    device: int,
    held_segments: list[HeldSegment],
    tables: list[BlockTable],
    buffers: list[int],
    *,
    length: int,
) -> LayerTable:
    """Layer table of one device with one row: block tables, logits and overlap buffers."""
    loss = [
        _logits(problem_of_kind, stage, device, part.segment, length=length)
        for part in held_segments
    ]
    border = np.zeros((1, len(problem_of_kind.cluster.tiers()), 1))
    return LayerTable(
        **{name: np.stack([getattr(t, name) for t in tables]) for name in OF_BLOCKS},
        logits_bytes=np.array([max(a for a, _ in loss)], dtype=np.int64),
        logits_blocks=np.array([max(b for _, b in loss)], dtype=np.int64),
        overlap_buffers=np.array([max(buffers)], dtype=np.int64),
        border=border,
    )


def _logits(
    problem_of_kind: Problem, stage: StageParts, device: int, segment: Segment, *, length: int
) -> tuple[int, int]:
    """Peak bytes of a device's logits, and of their allocator blocks; (0, 0) without a loss.

    Zeros where it computes no loss.
    """
    loss = next((o for o in segment.block.operators if o.kind is OperatorKind.LOSS), None)
    if loss is None:
        return 0, 0
    structure = CellStructure(stage=segment.cells, device=device - stage.base, length=length)
    if not structure.runs(loss):
        return 0, 0
    width, tokens = (
        structure.part(loss.reads[0], loss).times,
        structure.tokens(loss.klass, length).times,
    )
    split = np.array([width < loss.reads[0].size])
    peak_and_blocks = logits_bytes(
        loss,
        problem_of_kind.runtime,
        tokens=np.array([tokens]),
        local_vocabulary=np.array([width]),
        split=split,
        hidden=problem_of_kind.model.hidden,
    )
    return int(peak_and_blocks[0][0]), int(peak_and_blocks[1][0])
