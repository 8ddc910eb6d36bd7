"""Values of each axis in the standard and the exhaustive space of grids."""

from __future__ import annotations

import itertools
from math import isqrt

from shardwright.program.training_problem import Problem
from shardwright.runtime.option_vocabulary import in_vocabulary_order
from shardwright.search.grid.members.default_runtime_and_recompute_options import (
    has_one_layer_kind,
    module_ladder,
)
from shardwright.search.grid.members.grid_search_space import AXES, Space, Value
from shardwright.strategy.grid.grid_rules import SCHEDULES, GridFacts
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers


def _divisors(number: int, limit: int) -> tuple[int, ...]:
    """Divisors of a number up to `limit`, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple([d for d in sorted({*small, *(number // d for d in small)}) if d <= limit])


def _eighths(top: int) -> tuple[int, ...]:
    """Ascending layer counts to recompute: 1/8 to 7/8 of `top`, at least 1; () for one layer."""
    return (
        tuple(sorted({max(top * part // 8, 1) for part in (1, 2, 3, 4, 5, 6, 7)}))
        if top > 1
        else ()
    )


def standard_space(problem: Problem, facts: GridFacts) -> Space:
    """The space of usual settings: tp within an island, ZeRO stages and options of the runtime.

    Both orders of dp and pp; all devices, or more than half of the nodes.
    """
    return _space(problem, facts, name="standard", wide=False)


def exhaustive_space(problem: Problem, facts: GridFacts) -> Space:
    """The wide space: tp across islands, all axis orders, all counts of recomputed layers.

    Also context parallelism with gathered keys.
    """
    return _space(problem, facts, name="exhaustive", wide=True)


def _space(problem: Problem, facts: GridFacts, *, name: str, wide: bool) -> Space:
    """Build the standard or the wide space from the model's sizes and the runtime's features."""
    runtime, devices = problem.runtime, facts.devices
    island = problem.cluster.node.island
    layers = num_layers(problem.model)
    heads = facts.heads or facts.scan_heads
    tp = _divisors(heads or devices, min(heads or devices, devices, 64 if wide else island))
    has_context = runtime.context_ring or runtime.context_gather or runtime.context_ulysses
    largest_cp = min(devices, 64 if wide else 16, max(facts.seq_len // (256 if wide else 1024), 1))
    cp = _divisors(facts.seq_len, largest_cp) if has_context else (1,)
    scans = any(o.scan is not None for b in problem.model.blocks for o in b.operators)
    # A teacher's chain lies beside the model's own, stage by stage, and ends in its head.
    of_teacher = {r.name for r in problem.model.runs if problem.model.blocks[r.block].is_of_teacher}
    is_chain = not problem.model.joins_streams
    pp = tuple(p for p in range(1, min(devices, layers + 2) + 1) if p == 1 or is_chain)
    chunks = tuple(v for v in range(1, layers + 3) if v <= (64 if wide else 16))
    holders = tuple(d for d in _divisors(devices, devices) if d > 1)
    group_sizes = (
        tuple(d for d in holders if d <= (512 if wide else island))
        if runtime.hybrid_sharding
        else ()
    )
    recompute_counts = (
        (*(tuple(range(1, layers)) if wide else _eighths(layers)), 0)
        if has_one_layer_kind(problem.model)
        else (0,)
    )
    moe = facts.experts > 0 and runtime.expert_parallel
    values: dict[str, tuple[Value, ...]] = {
        "tp": tp,
        "cp": (1,) if scans else cp,
        "pp": pp,
        "order": _orders(wide=wide),
        "ep": _divisors(facts.experts, devices) if moe else (1,),
        "etp": (tuple(range(1, min(devices, island) + 1)) if wide else (1,)) if moe else (1,),
        "sp": (0, 1) if runtime.sequence_parallel else (0,),
        "ulysses": cp if runtime.context_ulysses and not scans else (1,),
        "gather": (0, 1) if runtime.context_gather and wide else (0,),
        "mbs": tuple(2**i for i in range(7 if wide else 5)),
        "vpp": chunks,
        "schedule": tuple(
            s for s in ("gpipe", "1f1b", "interleaved-1f1b") if s in runtime.schedules
        ),
        "zero": runtime.zero_stages,
        "shard": (0, *group_sizes),
        "recompute": ("none", "selective", "full"),
        "recompute_layers": recompute_counts,
        "offload": ((0, 50, 100) if wide else (0, 100)) if runtime.optimizer_offload else (0,),
    }
    fewest = devices // 2 + 1 if devices > 1 else 0
    node = problem.cluster.node.num_devices if devices > problem.cluster.node.num_devices else 1
    paired = (
        tuple(s for s in runtime.schedules if s not in SCHEDULES)
        if is_chain and not of_teacher
        else ()
    )
    return Space(
        name=name,
        devices=devices,
        values=tuple((axis, values[axis]) for axis in AXES),
        fewest=fewest,
        node=node,
        modules=module_ladder(problem),
        paired=paired,
        runtime_options=in_vocabulary_order({**dict(runtime.own), **dict(runtime.options)}.items()),
    )


def _orders(*, wide: bool) -> tuple[str, ...]:
    """Values of the axis order: dp and pp exchanged, or every permutation of cp, dp and pp."""
    if not wide:
        return ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
    orders = []
    for order in itertools.permutations(("cp", "dp", "pp")):
        place = order.index("dp")
        orders.append("-".join(("tp", *order[:place], "ep", *order[place:])))
    return tuple(orders)
