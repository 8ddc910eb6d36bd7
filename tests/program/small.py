"""Small problems: clusters with any node size and fabric, grids drawn at random, and their
costs."""

from __future__ import annotations

import random
from dataclasses import replace

from shardwright.hardware.cluster import Cluster, FabricTier
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from tests.jobs import training_job

RUNTIME = load_runtime("megatron-core")
ORDERS = (
    ("tp", "cp", "ep", "dp", "pp"),
    ("tp", "cp", "ep", "pp", "dp"),
    ("tp", "ep", "dp", "cp", "pp"),
    ("tp", "pp", "cp", "ep", "dp"),
    ("cp", "tp", "ep", "dp", "pp"),
)


def cluster_of(
    devices: int, *, node: int, fabric: tuple[FabricTier, ...] = (), accelerator: str = "h100-sxm"
) -> Cluster:
    """`devices` of an accelerator in nodes of `node` (which divides them), each an island."""
    cluster = parse_cluster(f"{accelerator}:8")
    group = cluster.groups[0]
    assert devices % node == 0
    kind = replace(group.kind, num_devices=node, island=node, nics=min(group.kind.nics, node))
    return replace(
        cluster, groups=(replace(group, kind=kind, count=devices // node),), fabric=fabric
    )


def problem_of(
    model: Model,
    cluster: Cluster,
    *,
    runtime: Runtime = RUNTIME,
    global_batch: int = 64,
    seq_len: int = 64,
    job: TrainingJob | None = None,
) -> Problem:
    return Problem(
        model=model,
        cluster=cluster,
        job=job or training_job(seq_len=seq_len, global_batch=global_batch),
        runtime=runtime,
    )


def is_legal(problem: Problem, grid: Grid) -> bool:
    facts = grid_facts(
        problem.model,
        devices=grid.devices,
        global_batch=problem.job.global_batch,
        seq_len=problem.job.sequence_length,
    )
    runtime = problem.runtime
    zero = grid.zero in runtime.zero_stages and (
        grid.pp == 1 or grid.zero <= runtime.zero_with_pipeline
    )
    return zero and not violations(grid, facts=facts)


def random_grid(
    draw: random.Random, *, experts: bool, schedules: tuple[str, ...] = ("1f1b", "1f1b", "gpipe")
) -> Grid:
    """A grid of 2-64 ranks whose axes are drawn without regard to nodes; many are illegal for a
    given problem."""
    while True:
        ulysses = draw.choice((1, 1, 2))
        tp, cp = draw.choice((1, 1, 2, 4)), ulysses * draw.choice((1, 1, 2))
        pp, dp = draw.choice((1, 2, 2, 3, 4, 6)), draw.choice((1, 2, 3, 4, 6, 8))
        if 2 <= tp * cp * pp * dp <= 64:
            break
    vpp = draw.choice((1, 2)) if pp > 1 else 1
    recompute = draw.choice(tuple(Recompute))
    return Grid(
        tp=tp,
        sp=tp > 1 and draw.random() < 0.7,
        cp=cp,
        ulysses=ulysses,
        gather=draw.random() < 0.5,
        ep=draw.choice((1, 2, 4)) if experts else 1,
        etp=draw.choice((1, 1, 2)) if experts else 1,
        dp=dp,
        pp=pp,
        vpp=vpp,
        microbatch=draw.choice((1, 2)),
        zero=draw.choice((0, 1, 2, 3)),
        recompute=recompute,
        recompute_layers=draw.choice((0, 1)) if recompute is Recompute.FULL else 0,
        schedule="interleaved-1f1b" if vpp > 1 else draw.choice(schedules),
        order=draw.choice(ORDERS),
    )
