"""Recognition of the grid that a general plan was expanded from."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import prod
from typing import Any

from shardwright.errors import StrategyError
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.chunk_placement_by_schedule import WAVE, grid_schedule
from shardwright.strategy.grid.expert_mesh import fold
from shardwright.strategy.grid.grid_to_plan import FULL, MAIN, TWO_WAY, grid_placements, plan_of
from shardwright.strategy.grid.layers_per_chunk import chunk_layers
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import AXES, Grid, Recompute
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import Exchange, Split
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import ALL, Plan, State
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy, Placement


def grid_of(plan: Plan, *, model: Model) -> Grid | None:
    """Find the grid whose plan for `model` equals a general plan; None if there is none.

    A candidate is read off the plan (degrees from the trees, ranks from the bases), then expanded
    and compared.
    """
    if not plan.lanes or len(plan.orders) != 1 or not plan.lanes[0].stages:
        return None
    lane, order, names = plan.lanes[0], plan.orders[0], tuple(lane.name for lane in plan.lanes)
    if (
        names not in ((MAIN,), TWO_WAY)
        or not isinstance(order, NamedOrder)
        or order.lanes != names
        or order.parameters
    ):
        return None
    samples = sum(lane.samples for lane in plan.lanes)
    try:
        for bare in _candidates(plan, lane, order.schedule, model=model):
            grid = replace(bare, options=plan.options)
            if plan_of(grid, model=model, global_batch=samples) == plan:
                facts = grid_facts(model, devices=plan.devices, global_batch=samples, seq_len=1)
                return canonical(grid, facts=facts)
    except (StrategyError, ValueError, ZeroDivisionError):  # what was read off is no grid
        return None
    return None


def grid_of_stage(plan: Plan, lane: Lane, number: int, *, model: Model) -> Grid | None:
    """Find a grid with pp 1 that gives the split trees of stage `number`; None if there is none.

    Its ZeRO rules are the plan's, its recompute the stage's.
    """
    alone = replace(lane, stages=(replace(lane.stages[number], base=0),))
    try:
        return next(iter(_candidates(plan, alone, "1f1b", model=model)), None)
    except (StrategyError, ValueError, ZeroDivisionError):  # what was read off is no grid
        return None


def _terms(split: Split | None) -> list[tuple[Dim, int, bool, int]] | None:
    """(dim, parts, zigzag, stride) of nested cuts, outermost first; None if parts are weighted."""
    terms: list[tuple[Dim, int, bool, int]] = []
    while split is not None:
        if not isinstance(split.parts, int) or not isinstance(split.step, int):
            return None
        terms.append((split.dim, split.parts, split.zigzag, split.step))
        split = split.children[0]
    return terms


def _product_of_parts(
    terms: list[tuple[Dim, int, bool, int]], dim: Dim, *, zigzag: bool = False
) -> int:
    """Product of the parts of the cuts of `dim`: only zigzag cuts if `zigzag`, else only others."""
    return prod(parts for d, parts, z, _ in terms if d is dim and z is zigzag)


def _placement_of_class(placements: tuple[Placement, ...], operator_class: str) -> Placement | None:
    """The first placement that names an operator class; None if no placement names it."""
    return next((p for p in placements if operator_class in p.select.classes), None)


def _candidates(plan: Plan, lane: Lane, schedule: str, *, model: Model) -> list[Grid]:
    """Grids read from a plan's first stage, one for each order of axes with its split trees."""
    placements = lane.stages[0].placements
    everywhere = next((p for p in placements if not p.select.classes), None)
    terms = _terms(everywhere.split) if everywhere else None
    if terms is None or any(d not in (Dim.BATCH, Dim.SEQUENCE, Dim.WIDTH) for d, *_ in terms):
        return []
    ring, ulysses = (
        _product_of_parts(terms, Dim.SEQUENCE, zigzag=True),
        _product_of_parts(terms, Dim.SEQUENCE),
    )
    tp, dp = _product_of_parts(terms, Dim.WIDTH), _product_of_parts(terms, Dim.BATCH)
    expert, core, stream = (
        _placement_of_class(placements, klass) for klass in ("experts", "core", "stream")
    )
    routed = (_terms(expert.split) if expert else None) or []
    facts = grid_facts(model, devices=plan.devices, global_batch=lane.samples, seq_len=1)
    experts, attention = facts.experts > 0, facts.heads > 0
    bases = sorted({stage.base for stage in lane.stages})
    base = Grid(
        tp=tp,
        sp=tp > 1
        and stream is not None
        and Dim.REPLICATE not in [d for d, *_ in _terms(stream.split) or ()],
        cp=ring * ulysses,
        ulysses=ulysses,
        gather=core is not None and core.exchange is Exchange.GATHER,
        ep=_product_of_parts(routed, Dim.EXPERTS),
        etp=_product_of_parts(routed, Dim.FFN),
        dp=dp,
        pp=len(bases),
        vpp=len(lane.stages) // len(bases),
        microbatch=max(1, lane.samples // (lane.microbatches * dp)),
        schedule=schedule,
        slices=max(1, len(lane.slices)),
        **_zero_fields(plan),
        **_recompute_fields(lane),
        **_layer_fields(lane, layers=facts.layers, pp=len(bases), schedule=schedule),
    )
    pp_stride = bases[1] if base.pp > 1 else 0
    matching: list[Grid] = []
    for order in permutations(AXES):
        grid = replace(base, order=order)
        if grid.pp > 1 and grid.strides()["pp"] != pp_stride:
            continue
        if (grid.ep * grid.etp == 1 or fold(grid)) and grid_placements(
            grid, experts=experts, attention=attention
        ) == placements:
            matching.append(grid)
    return matching


def _zero_fields(plan: Plan) -> dict[str, Any]:
    """Grid fields zero, shard and offload, from a plan's first ZeRO rule; {} without rules."""
    if not plan.shards:
        return {}
    rule = plan.shards[0]
    zero = (
        3 if rule.parameter != 1 else 2 if rule.gradient != 1 else 1 if rule.optimizer != 1 else 0
    )
    offload = dict(rule.host).get(State.OPTIMIZER, 0)
    return {
        "zero": zero,
        "shard": rule.optimizer if zero and rule.optimizer != ALL else 0,
        "offload": offload,
    }


def _recompute_fields(lane: Lane) -> dict[str, Any]:
    """Grid fields host or recompute, from the stage that keeps or recomputes most; {} if none."""
    keeps = max((stage.keeps for stage in lane.stages), key=lambda k: k[0].blocks[1] if k else -1)
    if not keeps:
        return {}
    if keeps[0].how is ActivationPolicy.HOST:
        return {"host": keeps[0].blocks[1] + 1}
    if keeps[0].operators == (FULL,):
        return {"recompute": Recompute.FULL, "recompute_layers": keeps[0].blocks[1] + 1}
    return {"recompute": Recompute.SELECTIVE}


def _layer_fields(lane: Lane, *, layers: int, pp: int, schedule: str) -> dict[str, Any]:
    """Grid fields first and last, or layers, that give a lane's chunks; none for the default."""
    chunks = tuple(
        sum(item.count for item in stage.items if not item.name) for stage in lane.stages
    )
    vpp = len(chunks) // pp
    try:
        if chunk_layers(layers, pp=pp, vpp=vpp) == chunks:
            return {}
    except StrategyError:
        pass  # only first and last make it legal
    first, last = chunks[0] * vpp, chunks[pp - 1] * vpp
    if grid_schedule(schedule).placement == WAVE:
        return {"layers": chunks}
    try:
        if chunk_layers(layers, pp=pp, vpp=vpp, first=first, last=last) == chunks:
            return {"first": first, "last": last}
    except StrategyError:
        pass  # nor do they
    return {"layers": chunks}
