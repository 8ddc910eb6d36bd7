"""From a problem and a grid to a prediction: lower, price, simulate, add up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log2

import numpy as np

from shardwright.cost.block_table import PARTS
from shardwright.cost.communication import network_of
from shardwright.cost.compute import attention_flops
from shardwright.cost.critical_path import critical_path
from shardwright.cost.member import PART_NAMES, Priced, StepCosts, price_grid, step_costs
from shardwright.cost.sync import sync_shares
from shardwright.cost.tables import problem_machine, programs_of, structure_of
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.device import Evidence
from shardwright.program.fold import RankClasses, fold
from shardwright.program.instances import TaskKind
from shardwright.program.lower import lower, order_table
from shardwright.program.problem import Problem
from shardwright.program.program import Program, Shape
from shardwright.simulator.memory import stage_memory
from shardwright.simulator.prediction import Prediction, Source
from shardwright.runtime.runtime import Runtime
from shardwright.simulator.run import Links, Timeline, run
from shardwright.strategy.grid import Grid
from shardwright.units import MIB, PICOSECONDS_PER_SECOND, format_bytes, format_seconds

JITTER_PER_DOUBLING = 0.003
"""Share of the step that each doubling of nodes adds: weak scaling of published H100 runs (0.3-0.7 % a doubling), see docs/accuracy.md."""

RELEASE_SPREAD = 0.06
EXPOSED_ERROR = 0.3
EXPOSED = ("tp", "cp", "ep", "sharding")


SMALLEST_BUCKET_BYTES = 64 * MIB
"""Gradients that a runtime without buckets of its own puts on the wire at once: a layer's."""


def jitter(problem: Problem, devices: int) -> float:
    """Factor >= 1 on the step from stragglers and noise: 1 + 0.003 log2(nodes), the same in every tier of bounds."""
    nodes = max(devices / problem.cluster.node.num_devices, 1.0)
    return 1.0 + JITTER_PER_DOUBLING * log2(nodes)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A simulated strategy: its costs, Program and timeline, and the step's seconds with jitter."""

    grid: Grid
    costs: StepCosts
    program: Program
    timeline: Timeline
    step_time_s: float


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
    )
    return seconds * jitter(problem, grid.devices)


def predict(problem: Problem, grid: Grid, simulated: Simulated | None = None) -> Prediction:
    """Time and memory of one legal grid."""
    done = simulated or simulate_grid(problem, grid)
    step = done.step_time_s
    memory = stage_memory(problem, grid, done.costs, done.program.table)
    worst = max(memory, key=lambda s: s.reserved)
    machine = problem_machine(problem)
    parts = breakdown(problem, done)
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
    return float(np.sqrt((gemm_error / 2) ** 2 + RELEASE_SPREAD**2 + (EXPOSED_ERROR * exposed) ** 2))


def model_flops(problem: Problem) -> tuple[float, float]:
    """Model FLOPs of a step (forward and backward, no recompute): with scores under the mask, and with the full square.

    3 x forward: GEMMs 2 x active parameters x tokens, attention 2 x tokens x keys x (head_dim + value_dim) x heads. Leaves out
    element-wise work, and the embedding lookup.
    """
    causal: float = 0.0
    full: float = 0.0
    job = problem.job
    for run_ in problem.model.runs:
        block = problem.model.blocks[run_.block]
        tokens = job.tokens(block.sequence) or job.sequence_length
        for o in block.operators:
            weight = float(sum(p.size for p in o.parameters)) if o.kind.value in ("linear", "grouped-linear") else 0.0
            if o.kind.value == "grouped-linear" and o.experts is not None:
                weight = weight * o.experts.topk / o.experts.experts
            dense = 2.0 * weight * tokens
            scores = square = 0.0
            if o.attention is not None:
                context = (job.tokens(block.memory) or tokens) if o.attention.cross else tokens
                heads = np.array([o.attention.heads])
                count = np.array([tokens])
                scores = float(attention_flops(o.attention, tokens=count, heads=heads, context=context)[0])
                square = float(attention_flops(o.attention, tokens=count, heads=heads, context=context, causal=False)[0])
            causal += 3 * run_.count * (dense + scores)
            full += 3 * run_.count * (dense + square)
    return causal * job.global_batch, full * job.global_batch


def breakdown(problem: Problem, done: Simulated) -> tuple[tuple[str, float], ...]:
    """Where the step of the critical rank goes; the parts add up to the step.

    The critical rank is the one that computes longest. Parts: kernels by family, exposed communication by axis, recompute, slowdown by
    shared links and multiprocessors, waiting for the pipeline (bubble), gathers and reductions that nothing hides, the update, jitter.
    """
    program, timeline, costs = done.program, done.timeline, done.costs
    compute = program.instances.stream == 0
    kinds = program.columns.kind[program.instances.template]
    actions = compute & (kinds <= int(TaskKind.R))
    busy = np.zeros(len(program.classes), dtype=np.int64)
    np.add.at(busy, program.instances.klass[actions], (timeline.finish - timeline.start)[actions])
    klass = int(busy.argmax())
    mine = actions & (program.instances.klass == klass)
    parts = dict.fromkeys(PART_NAMES, 0.0)
    chunks = program.columns.chunk[program.instances.template]
    for kind, row in ((TaskKind.F, 0), (TaskKind.B, 1)):
        for c in np.unique(chunks[mine & (kinds == int(kind))]):
            runs = len(np.unique(program.instances.microbatch[mine & (kinds == int(kind)) & (chunks == c)]))
            for index, name in enumerate(PART_NAMES):
                parts[name] += runs * costs.parts[row, c, index]
    worked = float(timeline.work[mine].sum()) / PICOSECONDS_PER_SECOND
    spent = float((timeline.finish - timeline.start)[mine].sum()) / PICOSECONDS_PER_SECOND
    first = float(timeline.start[mine].min()) / PICOSECONDS_PER_SECOND
    last = float(timeline.finish[mine].max()) / PICOSECONDS_PER_SECOND
    step_task = compute & (kinds == int(TaskKind.STEP)) & (program.instances.klass == klass)
    begun = float(timeline.start[step_task].max()) / PICOSECONDS_PER_SECOND
    own_sync = (program.instances.stream == 3) & (program.instances.klass == klass)
    reduced = float(timeline.finish[own_sync].max()) / PICOSECONDS_PER_SECOND if own_sync.any() else last
    gathered = min(first, float(costs.gather_s[int(program.classes.stage[klass])]))
    exposed = max(reduced - last, 0.0) + gathered
    update = timeline.seconds - begun
    parts["slowdown"] = spent - worked
    parts["sharding"] += exposed
    parts["optimizer"] = update
    # Never negative but for rounding of the difference.
    parts["bubble"] = max((begun - spent) - exposed, 0.0)
    parts["jitter"] = done.step_time_s - timeline.seconds
    named = {**dict.fromkeys(PARTS, 0.0), **parts}
    # Rounding to picoseconds leaves a remainder below a nanosecond; it belongs to the largest part.
    largest = max(named, key=lambda n: named[n])
    named[largest] += done.step_time_s - sum(named.values())
    return tuple((name, float(value)) for name, value in named.items() if value > 1e-12 or name in ("gemm", "bubble", "optimizer"))


def _sources(problem: Problem) -> tuple[Source, ...]:
    node, machine = problem.cluster.node, problem_machine(problem)
    device = node.accelerator
    assumed = machine.gemm.origin
    return (
        Source(quantity=f"peak {machine.compute.value}", value=f"{machine.peak / 1e12:.4g} TFLOP/s", origin=device.origin),
        Source(quantity="memory", value=format_bytes(device.memory_bytes), origin=device.origin),
        Source(quantity="memory bandwidth", value=f"{device.memory_bandwidth / 1e12:.4g} TB/s", origin=device.origin),
        Source(
            quantity=f"GEMM rates {machine.gemm.dtype.value}",
            value=f"ec {machine.gemm.compute_efficiency} em {machine.gemm.memory_efficiency} q {machine.gemm.exponent} x {machine.gemm.sustained}",
            origin=assumed,
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


def is_assumed(prediction: Prediction) -> bool:
    """Some number behind the prediction is a stated default."""
    return any(s.origin.evidence is Evidence.ASSUMED for s in prediction.sources)
