"""Random mixed problems, and random members of their spaces."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from shardwright.arrays import IntArray
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.blocks.dense_blocks import (
    decoder_block,
    embedding_block,
    head_block,
    layer_block,
)
from shardwright.model.blocks.dense_transformer_operators import attention_operators
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import AttentionShape, ExpertShape
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.mixed.pipelines.pipeline_shapes import Shapes
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedLane, MixedPlan
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.strategy.plan.plan import Plan

CLUSTERS = (
    "a100-sxm-40gb:8+v100-sxm-16gb:8",
    "a100-sxm-40gb:4+v100-sxm-16gb:16",
    "h100-sxm:16+a100-sxm-80gb:16",
    "v100-sxm-32gb:16+a100-sxm-40gb:8",
    "a100-sxm-40gb:16+v100-sxm-16gb:24+h100-sxm:8",
    "h100-sxm:8@east+a100-sxm-80gb:16@west+v100-sxm-32gb:8@south,east~west=50gbps/10ms,east~south=10gbps/30ms,west~south=25gbps/20ms",
)
RUNTIMES = ("megatron-core", "megatron-2022", "megatron-bridge")
SHARDING = (
    "megatron-core",
    "torchtitan-0.2",
    "deepspeed-0.16",
    "fsdp1-llm-foundry",
    "internevo",
    "deepspeed-2021",
    "nemo-25.04",
)
"""Runtimes that have ZeRO-2 or 3, some beside pipelines, some without ZeRO-1."""


KINDS = ("dense", "experts", "first dense", "in turns")
"""Layers that models have: dense; with experts; one or two dense ones and then with experts; both
in turns."""


def chain_model(generator: random.Random, *, kind: str = "dense", layers: int = 0) -> Model:
    """A chain of so many layers of a kind, 0 = 3 to 10; experts are 4, 8 or 16."""
    heads, head_dim = generator.choice((8, 16, 32)), generator.choice((64, 128))
    hidden, vocab = heads * head_dim, generator.choice((1000, 32000))
    attention = AttentionShape(heads=heads, kv_heads=heads, head_dim=head_dim, value_dim=head_dim)
    gated = generator.random() < 0.5
    dense = decoder_block("layer", hidden=hidden, attention=attention, ffn=4 * hidden, gated=gated)
    tied, drawn = generator.random() < 0.3, generator.randint(3, 10)
    blocks = [embedding_block(hidden=hidden, vocab=vocab), dense]
    if kind != "dense":
        blocks.append(expert_layer(generator, hidden=hidden, attention=attention, gated=gated))
    blocks.append(head_block(hidden=hidden, vocab=vocab, tied=tied))
    runs = [Run(name="embed", block=0, count=1, inputs=())]
    for number, (block, many) in enumerate(_counted(generator, kind, layers or drawn)):
        runs.append(Run(name=f"layers.{number}", block=block, count=many, inputs=(runs[-1].name,)))
    runs.append(Run(name="head", block=len(blocks) - 1, count=1, inputs=(runs[-1].name,)))
    return Model(name="drawn", blocks=tuple(blocks), runs=tuple(runs), hidden=hidden, vocab=vocab)


def _counted(generator: random.Random, kind: str, layers: int) -> list[tuple[int, int]]:
    """(block, count) of runs of layers."""
    if kind == "in turns":
        return [(1 + turn % 2, 1) for turn in range(layers)]
    first = generator.randint(1, 2) if kind == "first dense" else 0
    return [*([(1, first)] if first else []), (1 if kind == "dense" else 2, layers - first)]


def expert_layer(
    generator: random.Random, *, hidden: int, attention: AttentionShape, gated: bool
) -> Block:
    """A layer with experts, some with a shared one."""
    shape = ExpertShape(experts=generator.choice((4, 8, 16)), topk=generator.choice((1, 2)))
    shared = generator.choice((0, hidden))
    return layer_block(
        "routed",
        hidden=hidden,
        attention=attention_operators(hidden=hidden, shape=attention),
        feed_forward=moe_operators(
            hidden=hidden,
            ffn=generator.choice((1, 2)) * hidden,
            experts=shape,
            gated=gated,
            shared_ffn=shared,
        ),
    )


def mixed_problem(
    generator: random.Random,
    *,
    global_batch: int = 64,
    kind: str = "dense",
    runtimes: tuple[str, ...] = RUNTIMES,
) -> Problem:
    """A model on a mixed cluster. Args: kind: see KINDS."""
    job = job_from_flags(
        seq_len=generator.choice((256, 1024)), global_batch=global_batch, precision="fp16"
    )
    return Problem(
        model=chain_model(generator, kind=kind),
        cluster=parse_cluster(generator.choice(CLUSTERS)),
        job=job,
        runtime=load_runtime(generator.choice(runtimes)),
    )


def with_batch(problem: Problem, batch: int) -> Problem:
    """The problem with another number of samples a step."""
    return replace(problem, job=replace(problem.job, global_batch=batch))


def drawn_plan(
    pipelines: PricedPipelines, generator: random.Random, *, lanes: int, sharded: bool = False
) -> MixedPlan | None:
    """Replicas of random shapes with random cuts; None where the devices are too few. Args:
    sharded: most lanes shard, where some can."""
    table, shapes = pipelines.stage_costs.table, pipelines.shapes
    left = np.array([pool.devices for pool in table.pools])
    found = []
    for _ in range(lanes):
        room = replicas_that_fit(shapes, left)
        fits = np.flatnonzero(room >= shapes.least)
        if sharded and generator.random() < 0.7 and shapes.sharded[fits].any():
            fits = fits[shapes.sharded[fits]]
        if not len(fits):
            return None
        shape = int(generator.choice(fits.tolist()))
        use = shapes.use[shape]
        replicas = generator.randint(int(shapes.least[shape]), int(room[shape]))
        left = left - replicas * use
        stages = int(shapes.stages[shape].sum())
        cuts = sorted(generator.sample(range(1, table.layers), stages - 1))
        sizes = tuple(b - a for a, b in zip((0, *cuts), (*cuts, table.layers), strict=True))
        runs = 2 if shapes.stages[shape, 1] else 1
        found.append(
            MixedLane(
                rows=tuple(shapes.rows[shape, :runs].tolist()),
                stages=tuple(shapes.stages[shape, :runs].tolist()),
                sizes=sizes,
                replicas=replicas,
                microbatches=generator.randint(1, 12),
            )
        )
    return MixedPlan(lanes=tuple(found))


def replicas_that_fit(shapes: Shapes, left: IntArray) -> IntArray:
    """(shapes,) replicas of a lane that some devices have room for."""
    return np.minimum(
        (left // np.maximum(shapes.use, 1) + (shapes.use == 0) * 2**30).min(axis=1), shapes.most
    )


def sole_of(stage_costs: MixedStageCosts, plan: MixedPlan) -> tuple[int, ...]:
    """The classes of pools each of which alone holds some part of the model: a unit of layers, or
    an end without tied weights."""
    table, classes = stage_costs.table, stage_costs.shared.classes
    holders: dict[object, set[int]] = {}
    for lane in plan.lanes:
        rows, first = lane.stage_rows(), 0
        owners = [classes[table.pool[row]] for row in rows]
        for owner, size in zip(owners, lane.sizes, strict=True):
            for unit in range(first, first + size):
                holders.setdefault(unit, set()).add(owner)
            first += size
        if not table.tied:
            holders.setdefault("before", set()).add(owners[0])
            holders.setdefault("after", set()).add(owners[-1])
    return tuple(sorted({min(some) for some in holders.values() if len(some) == 1}))


def placed_anyhow(
    stage_costs: MixedStageCosts, mixed: MixedPlan, plan: Plan, generator: random.Random
) -> Plan | None:
    """The plan with its stages on other devices of their pools, in a random order and with gaps;
    None where they find no room so."""
    table = stage_costs.table
    free, bases, last = {pool.group: 0 for pool in table.pools}, {}, 0
    stages = [
        (number, place, row)
        for number, lane in enumerate(mixed.lanes)
        for place, row in enumerate(lane.stage_rows())
    ]
    for number, place, row in generator.sample(stages, len(stages)):
        pool, size = table.pools[table.pool[row]], int(table.size[row])
        start = free[pool.group] + generator.choice((0, 0, 0, 1, 4))
        start = -(-start // size) * size
        bases[number, place] = pool.first + start
        free[pool.group] = start + size * mixed.lanes[number].replicas
        last = max(last, pool.first + free[pool.group])
        if free[pool.group] > pool.devices:
            return None
    lanes = tuple(
        replace(
            lane,
            stages=tuple(
                replace(stage, base=bases[number, place]) for place, stage in enumerate(lane.stages)
            ),
        )
        for number, lane in enumerate(plan.lanes)
    )
    return replace(plan, devices=last, lanes=lanes)


def batch_of(stage_costs: MixedStageCosts, plan: MixedPlan) -> int:
    """Samples that a plan does."""
    return sum(
        lane.replicas * lane.microbatches * int(stage_costs.table.mbs[lane.rows[0]])
        for lane in plan.lanes
    )


def shape_of(pipelines: PricedPipelines, lane: MixedLane) -> int:
    """The number of a lane's shape."""
    rows = [*lane.rows, -1][:2]
    stages = [*lane.stages, 0][:2]
    same = (pipelines.shapes.rows == rows).all(axis=1) & (pipelines.shapes.stages == stages).all(
        axis=1
    )
    return int(np.flatnonzero(same)[0])
