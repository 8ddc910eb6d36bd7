"""From a problem and a grid to a prediction: lower, price, simulate, add up."""

from __future__ import annotations

from functools import lru_cache
from math import log2

from shardwright.cost.answered import answered, shares
from shardwright.cost.communication import network_of
from shardwright.cost.compute import Machine
from shardwright.cost.critical_path import critical_path
from shardwright.cost.kernel_lookup import attention_is_tabled
from shardwright.cost.member import Priced, StepCosts, price_grid, step_costs
from shardwright.cost.model_flops import model_flops
from shardwright.cost.rows import rows_of
from shardwright.cost.sharded import overlap_slowdown
from shardwright.cost.sync import sync_shares
from shardwright.cost.tables import problem_machine, programs_of, structure_of
from shardwright.hardware.cluster import Cluster
from shardwright.program.fold import RankClasses, fold
from shardwright.program.lower import lower, order_table
from shardwright.program.problem import Problem
from shardwright.program.program import Program, Shape
from shardwright.runtime.runtime import Runtime
from shardwright.simulator.breakdown import Simulated, breakdown
from shardwright.simulator.interval import doubts, interval
from shardwright.simulator.memory import stage_memory
from shardwright.simulator.prediction import Prediction, Source
from shardwright.simulator.run import Links, run
from shardwright.strategy.grid import Grid
from shardwright.units import MIB, format_bytes, format_seconds

SMALLEST_BUCKET_BYTES = 64 * MIB
"""Gradients that a runtime without buckets of its own puts on the wire at once: a layer's."""


def jitter(problem: Problem, devices: int) -> float:
    """Factor >= 1 on the step from stragglers and noise: 1 + jitter x log2(nodes), the same in every tier of bounds."""
    nodes = max(devices / problem.cluster.node.num_devices, 1.0)
    return 1.0 + problem.constants.jitter * log2(nodes)


def microbatches_of(problem: Problem, grid: Grid) -> int:
    """Microbatches that each replica runs in a step."""
    return problem.job.global_batch // (grid.dp * grid.microbatch)


def lower_grid(problem: Problem, grid: Grid, costs: StepCosts, *, classes: RankClasses | None = None) -> Program:
    """The Program of `grid`; `classes` other than the folded ones are for proofs."""
    shape = Shape(
        schedule=grid.schedule,
        ranks=grid.pp,
        chunks_per_rank=grid.vpp,
        microbatches=microbatches_of(problem, grid),
        pieces=tuple(int(p) for p in costs.pieces),
        gathers=bool(costs.gather_s.any()),
        blocking=not problem.runtime.overlap_p2p,
        reduces_last=not problem.runtime.overlap_grad_reduce,
    )
    structure = structure_of(sp=grid.sp, gather=grid.gather, tp=grid.tp)
    return lower(
        grid,
        blocks=programs_of(problem, structure),
        contents=costs.contents,
        classes=classes or fold(grid, problem.cluster.tiers()),
        shape=shape,
    )


def links_of(problem: Problem, grid: Grid) -> Links:
    """What the tasks of `grid` share: sends fill a device's link, gradient collectives the share of it that their algorithm uses."""
    mesh = Grid(tp=grid.tp, cp=grid.cp, dp=grid.dp, pp=grid.pp, zero=grid.zero, shard=grid.shard, order=grid.order)
    return _links(mesh, problem.cluster, problem.runtime, float(overlap_slowdown(problem, rows_of([mesh]))[0]))


@lru_cache(maxsize=1024)
def _links(grid: Grid, cluster: Cluster, runtime: Runtime, slowdown: float) -> Links:
    network = network_of(cluster, library=runtime.collective_library)
    bucket = max(runtime.bucket_bytes, SMALLEST_BUCKET_BYTES)
    return Links(
        tiers=network.tiers,
        slowdown=slowdown,
        sync_share=sync_shares(grid, network=network, bucket=bucket, sharded=grid.zero > 0),
    )


def simulate_grid(
    problem: Problem, grid: Grid, priced: Priced | None = None, *, costs: StepCosts | None = None, classes: RankClasses | None = None
) -> Simulated:
    """Tier S. `priced` or `costs`: what is already known of the grid; `classes` other than the folded ones are for proofs."""
    if costs is None:
        costs = step_costs(problem, grid, priced or price_grid(problem, grid))
    program = lower_grid(problem, grid, costs, classes=classes)
    timeline = run(program, costs=costs, links=links_of(problem, grid))
    return Simulated(
        grid=grid, costs=costs, program=program, timeline=timeline, step_time_s=timeline.seconds * jitter(problem, grid.devices)
    )


def path_seconds(problem: Problem, grid: Grid, costs: StepCosts) -> float:
    """Tier B1."""
    tiers = problem.cluster.tiers()
    seconds = critical_path(
        costs,
        table=order_table(grid, microbatches=microbatches_of(problem, grid)),
        classes=fold(grid, tiers),
        tiers=tiers,
        blocking=not problem.runtime.overlap_p2p,
        reduces_last=not problem.runtime.overlap_grad_reduce,
        slowdown=links_of(problem, grid).slowdown,
    )
    return seconds * jitter(problem, grid.devices)


def predict(problem: Problem, grid: Grid, simulated: Simulated | None = None) -> Prediction:
    """Time and memory of one legal grid."""
    done = simulated or simulate_grid(problem, grid)
    step = done.step_time_s
    memory = stage_memory(problem, grid, done.costs, done.program.table)
    worst = max(memory, key=lambda s: s.reserved)
    machine = problem_machine(problem)
    parts = breakdown(done)
    found = doubts(problem, parts=parts, step_s=step)
    peak = machine.peak * grid.devices
    causal, full = model_flops(problem)
    return Prediction(
        step_time_s=step,
        interval_s=interval(step, found),
        doubts=found,
        tokens_per_s=problem.job.tokens_per_step / step,
        tokens_per_s_per_device=problem.job.tokens_per_step / step / grid.devices,
        mfu_causal=causal / step / peak,
        mfu_full=full / step / peak,
        allocated_bytes=worst.allocated,
        reserved_bytes=worst.reserved,
        capacity_bytes=problem.cluster.node.accelerator.memory_bytes,
        stages=memory,
        breakdown_s=parts,
        sources=(*problem_sources(problem), *_answers(problem, grid)),
    )


def problem_sources(problem: Problem) -> tuple[Source, ...]:
    """Rates and sizes of the (first kind of) node that every prediction rests on, with where each comes from."""
    node, machine = problem.cluster.node, problem_machine(problem)
    device = node.accelerator
    gemm = machine.gemm
    return (
        Source(quantity=f"peak {machine.compute.value}", value=f"{machine.peak / 1e12:.4g} TFLOP/s", origin=device.origin),
        Source(quantity="memory", value=format_bytes(device.memory_bytes), origin=device.origin),
        Source(quantity="memory bandwidth", value=f"{device.memory_bandwidth / 1e12:.4g} TB/s", origin=device.origin),
        Source(
            quantity=f"GEMM rates {gemm.dtype.value}",
            value=f"ec {gemm.compute_efficiency} em {gemm.memory_efficiency} q {gemm.exponent} x {gemm.sustained}",
            origin=gemm.origin,
        ),
        *_attention_curve(machine),
        Source(quantity="scale-up link", value=_link(node.scale_up.achieved, node.scale_up.latency_s), origin=node.scale_up.origin),
        Source(quantity="network card", value=_link(node.nic.achieved, node.nic.latency_s), origin=node.nic.origin),
    )


def _attention_curve(machine: Machine) -> tuple[Source, ...]:
    """The curve of the kernel's generation, where no measured table stands in for it."""
    if attention_is_tabled(machine.accelerator, machine.attention):
        return ()
    curve = ", ".join(f"{length}: {share}" for length, share in machine.attention.forward)
    return (Source(quantity=f"attention {machine.attention.generation}", value=curve, origin=machine.attention.origin),)


def _answers(problem: Problem, grid: Grid) -> tuple[Source, ...]:
    """One line a family of kernels: what share of its seconds each table, fit or assumption answered for; the origin is the largest's."""
    return tuple(
        Source(
            quantity=f"{share.family} time",
            value=", ".join(f"{part:.0%} {origin.evidence.value} ({origin.reference})" for part, origin in share.parts),
            origin=share.parts[0][1],
        )
        for share in shares(answered(problem, grid))
    )


def _link(bandwidth: float, latency: float) -> str:
    return f"{bandwidth / 1e9:.4g} GB/s, {format_seconds(latency)}"
