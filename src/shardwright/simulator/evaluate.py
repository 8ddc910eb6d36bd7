"""From a problem and a grid to a prediction: lower, price, simulate, add up."""

from __future__ import annotations

from functools import lru_cache
from math import log2, sqrt

from shardwright.cost.communication import network_of
from shardwright.cost.critical_path import critical_path
from shardwright.cost.member import Priced, StepCosts, price_grid, step_costs
from shardwright.cost.model_flops import model_flops
from shardwright.cost.sync import sync_shares
from shardwright.cost.tables import problem_machine, programs_of, structure_of
from shardwright.hardware.cluster import Cluster
from shardwright.program.fold import RankClasses, fold
from shardwright.program.lower import lower, order_table
from shardwright.program.problem import Problem
from shardwright.program.program import Program, Shape
from shardwright.runtime.runtime import Runtime
from shardwright.simulator.breakdown import Simulated, breakdown
from shardwright.simulator.memory import stage_memory
from shardwright.simulator.prediction import Prediction, Source
from shardwright.simulator.run import Links, run
from shardwright.strategy.grid import Grid
from shardwright.units import MIB, format_bytes, format_seconds

RELEASE_SPREAD = 0.06
EXPOSED_ERROR = 0.3
EXPOSED = ("tp", "cp", "ep", "sharding")


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
    return _links(mesh, problem.cluster, problem.runtime)


@lru_cache(maxsize=1024)
def _links(grid: Grid, cluster: Cluster, runtime: Runtime) -> Links:
    network = network_of(cluster, library=runtime.collective_library)
    bucket = max(runtime.bucket_bytes, SMALLEST_BUCKET_BYTES)
    return Links(
        tiers=network.tiers,
        slowdown=cluster.node.accelerator.overlap_slowdown,
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
    half_width = interval_half_width(machine.gemm.error, exposed=sum(v for name, v in parts if name in EXPOSED) / step)
    peak = machine.peak * grid.devices
    causal, full = model_flops(problem)
    return Prediction(
        step_time_s=step,
        interval_s=(step * (1.0 - half_width), step * (1.0 + half_width)),
        tokens_per_s=problem.job.tokens_per_step / step,
        tokens_per_s_per_device=problem.job.tokens_per_step / step / grid.devices,
        mfu_causal=causal / step / peak,
        mfu_full=full / step / peak,
        allocated_bytes=worst.allocated,
        reserved_bytes=worst.reserved,
        capacity_bytes=problem.cluster.node.accelerator.memory_bytes,
        stages=memory,
        breakdown_s=parts,
        sources=_sources(problem),
    )


def interval_half_width(gemm_error: float, *, exposed: float) -> float:
    """Relative half-width of an 80 % interval: independent errors, root of the sum of squares.

        sqrt((e_gemm / 2)^2 + 0.06^2 + (0.3 x exposed)^2)

    Args:
        gemm_error: of one GEMM; a step has many shapes, and half of it stays. exposed: share of the step that is exposed communication,
            known to 30 % (links between nodes are assumed at 0.8 of line rate; published sends reach 0.7, quiet rings more).

    0.06: the same configuration differs by 1 to 10 % between releases of one framework (NeMo 24.09 to 25.05).
    """
    return sqrt((gemm_error / 2) ** 2 + RELEASE_SPREAD**2 + (EXPOSED_ERROR * exposed) ** 2)


def _sources(problem: Problem) -> tuple[Source, ...]:
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
        Source(
            quantity=f"attention {machine.attention.generation}",
            value=", ".join(f"{length}: {share}" for length, share in machine.attention.forward),
            origin=machine.attention.origin,
        ),
        Source(quantity="scale-up link", value=_link(node.scale_up.achieved, node.scale_up.latency_s), origin=node.scale_up.origin),
        Source(quantity="network card", value=_link(node.nic.achieved, node.nic.latency_s), origin=node.nic.origin),
    )


def _link(bandwidth: float, latency: float) -> str:
    return f"{bandwidth / 1e9:.4g} GB/s, {format_seconds(latency)}"
