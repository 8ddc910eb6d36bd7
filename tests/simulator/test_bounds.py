"""Each tier is a lower bound of the next: B0 <= B1 <= S; and B1 is the longest path of the Program."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from shardwright.program.fold import is_aligned
from shardwright.simulator.evaluate import jitter, lower_grid, path_seconds, simulate_grid
from shardwright.simulator.run import template_work

from shardwright.cost.member import price_grid, step_costs
from shardwright.dtype import Dtype
from shardwright.hardware.cluster import FabricTier
from shardwright.program.instances import TaskKind
from shardwright.program.problem import Problem
from shardwright.runtime.runtime import Capture, ExpertDispatch, Runtime, ScaleGroup, TpOverlap
from shardwright.search.bounded import bound_space
from shardwright.search.members import member_grid
from shardwright.search.space import AXES, Space
from shardwright.simulator.kernel import longest_path
from shardwright.simulator.memory import reserved_bytes
from shardwright.strategy.grid import Grid
from shardwright.strategy.grid_facts import grid_facts
from shardwright.units import PICOSECONDS_PER_SECOND
from tests.program.small import RUNTIME, cluster_of, is_legal, problem_of, random_grid
from tests.strategies import dense_model, expert_model

BLOCKS, EACH = 4, 60
NARROW, WIDE = dense_model(layers=12), dense_model(layers=12, heads=64, ffn=16384, vocab=50000, tied=True)
SPARSE = expert_model(dense=1, sparse=11, experts=8)
ANY = replace(
    RUNTIME,
    name="any",
    schedules=("gpipe", "1f1b", "interleaved-1f1b"),
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=3,
    hybrid_sharding=True,
    optimizer_offload=True,
)
RUNTIMES: tuple[Runtime, ...] = (
    ANY,
    replace(ANY, name="blocking-sends", overlap_p2p=False),
    replace(ANY, name="copies", gather_copy_bytes=40, reduce_copy_bytes=60),
    replace(ANY, name="reduces-at-the-end", reduce_every_microbatch=False),
    replace(ANY, name="blocking-reductions", overlap_grad_reduce=False),
    replace(ANY, name="blocking-gathers", overlap_param_gather=False),
    replace(ANY, name="reduced-scales", scales_reduced=ScaleGroup.STAGE),
    replace(ANY, name="captured", capture=Capture.ITERATION),
    replace(ANY, name="hidden-experts", expert_overlap=True, routing_on_host=True, expert_dispatch=ExpertDispatch.DEDUPLICATED),
    replace(ANY, name="more-memory", tp_overlap=TpOverlap.FUSED, logits_blocks_bytes=ANY.logits_bytes + 2, split_logits_bytes=4),
    replace(ANY, name="nothing-overlaps", overlap_p2p=False, overlap_grad_reduce=False, overlap_param_gather=False),
)


def drawn(draw: random.Random) -> tuple[Problem, Grid]:
    while True:
        experts = draw.random() < 0.4
        grid = random_grid(draw, experts=experts, schedules=("1f1b", "gpipe"))
        node = draw.choice((2, 4, 8, 12))
        if grid.devices % node:
            continue
        spine = FabricTier(name="spine", num_devices=0, oversubscription=4.0)
        fabric = draw.choice(((), (FabricTier(name="leaf", num_devices=2 * node), spine)))
        problem = problem_of(
            SPARSE if experts else draw.choice((NARROW, WIDE)),
            cluster_of(grid.devices, node=node, fabric=fabric, accelerator=draw.choice(("h100-sxm", "l40s"))),
            runtime=draw.choice(RUNTIMES),
            global_batch=grid.dp * grid.microbatch * draw.choice((1, 2, 6, 12)),
            seq_len=draw.choice((256, 4096)),
        )
        if problem.runtime.scales_reduced is not ScaleGroup.NONE:
            problem = replace(problem, job=replace(problem.job, compute=Dtype.FP8))
        if is_legal(problem, grid):
            return problem, grid


def around(grid: Grid, *, alike: bool) -> Space:
    """All memory choices of one mesh and schedule."""
    switches = {"sp": int(grid.sp), "gather": int(grid.gather), "mbs": grid.microbatch, "order": "-".join(grid.order)}
    values: dict[str, tuple[int | str, ...]] = {
        axis: (switches[axis] if axis in switches else getattr(grid, axis),)
        for axis in ("tp", "cp", "pp", "order", "ep", "etp", "sp", "ulysses", "gather", "mbs", "vpp", "schedule")
    }
    values |= {"zero": (0, 1, 2, 3), "shard": (0, 2), "recompute": ("none", "selective", "full"), "offload": (0, 50)}
    # A number of recomputed layers is searched only where layers are alike.
    values["recompute_layers"] = (0, 1) if alike else (0,)
    return Space(name="around", devices=grid.devices, values=tuple((axis, values[axis]) for axis in AXES))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_each_tier_bounds_the_next(block: int) -> None:
    draw = random.Random(100 + block)
    members = tight = strict = 0
    for _ in range(EACH):
        problem, grid = drawn(draw)
        facts = grid_facts(problem.model, devices=grid.devices, global_batch=problem.job.global_batch, seq_len=problem.job.sequence_length)
        bounded = bound_space(problem, around(grid, alike=problem.model is not SPARSE), facts, capacity=10**15)
        places = draw.sample(range(bounded.members.num_members), min(4, bounded.members.num_members))
        assert places, grid
        for place in places:
            member = member_grid(bounded.members, place)
            costs = step_costs(problem, member, bounded.prepared.priced(place))
            bound, path = float(bounded.seconds[place]), path_seconds(problem, member, costs)
            simulated = simulate_grid(problem, member, costs=costs)
            where = f"{problem.runtime.name} {member}"
            assert 0.0 < bound <= path, where
            assert path <= simulated.step_time_s, where
            need = reserved_bytes(problem, simulated.program.table, costs)
            assert np.floor(bounded.memory[place]) <= need.max(), where
            members += 1
            tight += bound > 0.8 * path
            strict += path < simulated.step_time_s
    assert members >= 3 * EACH
    assert tight > members // 2
    assert strict > members // 10


def program_path(problem: Problem, grid: Grid) -> tuple[float, float]:
    """Longest path of the lowered Program, and B1, in seconds, where kernels beside collectives are no slower: a path knows none."""
    problem = replace(problem, constants=replace(problem.constants, overlap_slowdown=1.0))
    costs = step_costs(problem, grid, price_grid(problem, grid))
    program = lower_grid(problem, grid, costs)
    tasks = program.instances
    work = template_work(program, costs)[tasks.template]
    finish = longest_path(work, tasks.indegree, tasks.successor_start, tasks.successor)[1]
    assert finish.min() >= 0
    assert program.columns.kind[tasks.template[int(finish.argmax())]] == TaskKind.STEP
    longest = int(finish.max()) / PICOSECONDS_PER_SECOND * jitter(problem, grid.devices)
    return longest, path_seconds(problem, grid, costs)


def test_path_is_the_longest_of_the_program() -> None:
    draw = random.Random(9)
    aligned = 0
    for _ in range(160):
        problem, grid = drawn(draw)
        longest, path = program_path(problem, grid)
        if is_aligned(grid, problem.cluster.tiers()):
            assert path == longest, f"{problem.runtime.name} {grid}"
            aligned += 1
        else:
            # Classes of one pipeline rank differ in their borders: B1 takes the fastest.
            assert path <= longest, f"{problem.runtime.name} {grid}"
    assert aligned > 60


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.name)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_path_of_every_schedule_and_switch(runtime: Runtime, schedule: str, zero: int) -> None:
    vpp = 3 if schedule == "interleaved-1f1b" else 1
    grid = Grid(tp=2, sp=True, pp=4, dp=2, vpp=vpp, schedule=schedule, zero=zero)
    problem = problem_of(WIDE, cluster_of(16, node=8), runtime=runtime, global_batch=16)
    longest, path = program_path(problem, grid)
    assert path == longest
    assert path <= simulate_grid(problem, grid).step_time_s
