"""Seconds and bytes of one strategy's tasks, composed from rows of the tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwright.cost.block_table import GEMM, PARTS, PHASES
from shardwright.cost.rows import rows_of
from shardwright.cost.tables import LayerTable, MeshTable, layer_table, mesh_table
from shardwright.cost.terms import backward_layer, forward_layer, optimizer_seconds
from shardwright.program.chunks import Content, chunk_contents
from shardwright.program.problem import Problem
from shardwright.strategy.grid import Grid, Recompute

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_PIECES = 4
"""Gradient buckets that a chunk's last backward is cut into at most: enough for the overlap, few enough for the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """One strategy's step, before it is put in order. c = chunk, r = pipeline rank.

    Args:
        forward_s, backward_s: (c,) seconds of F and of B (recompute included). parts: (2, c, parts + 2): F and B by part, then
            recompute and exposed sharding traffic.
        border_s: (tiers,) seconds of a send across each tier.
        gather_s, reduce_s: (c,) parameters gathered at the start of the step, gradients reduced at its end. pieces: (c,).
        optimizer_s: (r,) update, clipping, tied exchange; after_s: (r,) parameters gathered at the end of the step.
        memory: items (name, (r,) bytes) that live through the step; saved_bytes: (c,) of one microbatch; peak_bytes: (r,) transients.
    """

    contents: tuple[Content, ...]
    forward_s: FloatArray
    backward_s: FloatArray
    parts: FloatArray
    border_s: FloatArray
    gather_s: FloatArray
    reduce_s: FloatArray
    pieces: IntArray
    optimizer_s: FloatArray
    after_s: FloatArray
    static_bytes: tuple[tuple[str, IntArray], ...]
    saved_bytes: IntArray
    transient_bytes: IntArray
    logits_bytes: IntArray
    flops: float


RECOMPUTE_PART = len(PARTS)
SHARDING_PART = len(PARTS) + 1
PART_NAMES = (*PARTS, "recompute", "sharding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Where a grid's numbers stand in the tables."""

    layers: LayerTable
    layer_row: int
    meshes: MeshTable
    mesh_row: int


def price_grid(problem: Problem, grid: Grid) -> Priced:
    """Tables of one row for one grid."""
    rows = rows_of([grid])
    shard = np.array([grid.shard or grid.dp * grid.cp], dtype=np.int64)
    return Priced(layers=layer_table(problem, rows), layer_row=0, meshes=mesh_table(problem, rows, shard), mesh_row=0)


def step_costs(problem: Problem, grid: Grid, priced: Priced) -> StepCosts:
    """Compose the step of `grid` from its rows."""
    contents = chunk_contents(problem.model, pp=grid.pp, vpp=grid.vpp, first=grid.first, last=grid.last)
    layers, row = priced.layers, priced.layer_row
    chunks = len(contents)
    parts = np.zeros((2, chunks, len(PART_NAMES)))
    saved = np.zeros(chunks, dtype=np.int64)
    gather, reduce = _per_layer_sync(priced, grid)
    start, end = np.zeros(chunks), np.zeros(chunks)
    for c, content in enumerate(contents):
        remaining = _recomputed_layers(grid, content)
        for block, count in content:
            redone = min(remaining, count) if _is_layer(problem, block) else 0
            remaining -= redone
            parts[:, c] += _block_parts(problem, grid, layers.seconds[block, :, :, row], count, redone, gather[block], reduce[block])
            saved[c] += _saved(grid, layers.saved_bytes[block, :, row], count, redone)
        first = [b for b, _ in content]
        if first and grid.zero == 3:
            parts[0, c, SHARDING_PART] += gather[first[0]]
            parts[1, c, SHARDING_PART] += gather[first[-1]]
        if first and _reduces_each_microbatch(problem, grid):
            parts[1, c, SHARDING_PART] += reduce[first[0]]
        else:
            end[c] = sum(count * reduce[block] for block, count in content)
        if grid.zero in (1, 2):
            start[c] = sum(count * gather[block] for block, count in content)
    optimizer, after, start = _step_end(problem, grid, priced, contents, start)
    return StepCosts(
        contents=contents,
        forward_s=parts[0].sum(axis=1),
        backward_s=parts[1].sum(axis=1),
        parts=parts,
        border_s=layers.border[:, row],
        gather_s=start,
        reduce_s=end,
        pieces=_pieces(problem, grid, contents),
        optimizer_s=optimizer,
        after_s=after,
        static_bytes=_static_bytes(problem, grid, priced, contents),
        saved_bytes=saved,
        transient_bytes=_transients(problem, grid, priced, contents),
        logits_bytes=_logits(priced, contents, problem, grid),
        flops=float(sum(count * layers.flops[block, row] for content in contents for block, count in content)),
    )


def _is_layer(problem: Problem, block: int) -> bool:
    return not {o.klass.value for o in problem.model.blocks[block].operators} & {"embed", "head"}


def _recomputed_layers(grid: Grid, content: Content) -> int:
    """Layers of a chunk that are recomputed in full."""
    if grid.recompute is not Recompute.FULL:
        return 0
    return grid.recompute_layers or sum(count for _, count in content)


def _reduces_each_microbatch(problem: Problem, grid: Grid) -> bool:
    return grid.zero >= 2 and problem.runtime.reduce_every_microbatch


def _per_layer_sync(priced: Priced, grid: Grid) -> tuple[FloatArray, FloatArray]:
    sync, row = priced.meshes.sync, priced.mesh_row
    if grid.zero == 0:
        return np.zeros(sync.gather.shape[0]), sync.all_reduce[:, row]
    return sync.gather[:, row], sync.reduce[:, row]


def _block_parts(
    problem: Problem, grid: Grid, seconds: FloatArray, count: int, redone: int, gather: float, reduce: float
) -> FloatArray:
    """F and B of `count` equal blocks by part, `redone` of them recomputed in full."""
    slowdown = problem.cluster.node.accelerator.overlap_slowdown
    result = np.zeros((2, len(PART_NAMES)))
    forward, backward = seconds[0], seconds[1] + seconds[2]
    result[0, : len(PARTS)] = count * forward
    result[1, : len(PARTS)] = count * backward
    selective = seconds[3].sum() if grid.recompute is Recompute.SELECTIVE else 0.0
    full = seconds[4].sum()
    result[1, RECOMPUTE_PART] = count * selective + redone * full
    every = problem.runtime.reduce_every_microbatch
    plain = float(backward.sum()) + selective
    done = forward_layer(float(forward.sum()), gather, grid.zero, slowdown)
    kept = backward_layer(plain, gather, reduce, grid.zero, every, slowdown)
    again = backward_layer(plain + full, gather, reduce, grid.zero, every, slowdown)
    result[0, SHARDING_PART] = count * (done - float(forward.sum()))
    result[1, SHARDING_PART] = (count - redone) * (kept - plain) + redone * (again - plain - full)
    return result


def _saved(grid: Grid, saved: IntArray, count: int, redone: int) -> int:
    mode = 1 if grid.recompute is Recompute.SELECTIVE else 0
    return int((count - redone) * saved[mode] + redone * saved[2])


def _pieces(problem: Problem, grid: Grid, contents: tuple[Content, ...]) -> IntArray:
    """Buckets of each chunk: none hidden = 1; else one a layer up to MAX_PIECES."""
    if not problem.runtime.overlap_grad_reduce:
        return np.ones(len(contents), dtype=np.int64)
    return np.array([min(max(sum(n for _, n in content), 1), MAX_PIECES) for content in contents], dtype=np.int64)


def _step_end(
    problem: Problem, grid: Grid, priced: Priced, contents: tuple[Content, ...], start: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Optimizer seconds and end gathers of each rank; and the gathers left at the start of the step."""
    sync, row = priced.meshes.sync, priced.mesh_row
    elements, experts = _rank_elements(priced, grid, contents)
    device, host = problem.cluster.node.accelerator, problem.cluster.node.host
    bandwidth = device.memory_bandwidth * device.element_efficiency
    traffic = update_bytes(problem)
    rate = host_update_rate(problem)
    shards = (float(sync.shard[row]), float(sync.expert_shard[row])) if grid.zero else (1.0, 1.0)
    share = grid.offload / 100.0
    del host
    optimizer = np.array(
        [
            optimizer_seconds(float(elements[r]), shards[0], traffic, bandwidth, share, rate)
            + optimizer_seconds(float(experts[r]), shards[1], traffic, bandwidth, share, rate)
            + priced.meshes.norm_s[row]
            + (priced.meshes.tied_s[row] if r in (0, grid.pp - 1) else 0.0)
            for r in range(grid.pp)
        ]
    )
    after = np.zeros(grid.pp)
    if not problem.runtime.overlap_param_gather:
        for c in range(len(contents)):
            after[c % grid.pp] += start[c]
        start = np.zeros_like(start)
    return optimizer, after, start


def update_bytes(problem: Problem) -> float:
    """Traffic of one element's update: states read and written, gradient read twice (norm, update), parameter written, gradient zeroed."""
    job, runtime = problem.job, problem.runtime
    gradient = runtime.gradient_dtype.bits // 8
    return 2.0 * job.optimizer.state_bytes + 3.0 * gradient + job.parameter.bits // 8


def host_update_rate(problem: Problem) -> float:
    """Elements/s that one device's share of the host updates: gradient down, update in host memory, parameter up, in series."""
    node, job = problem.cluster.node, problem.job
    gradient = problem.runtime.gradient_dtype.bits // 8
    over_pcie = (gradient + job.parameter.bits // 8) / node.host.pcie.achieved
    in_memory = update_bytes(problem) * node.num_devices / node.host.memory_bandwidth
    return 1.0 / (over_pcie + in_memory)


def _rank_elements(priced: Priced, grid: Grid, contents: tuple[Content, ...]) -> tuple[IntArray, IntArray]:
    sync, row = priced.meshes.sync, priced.mesh_row
    dense, experts = np.zeros(grid.pp, dtype=np.int64), np.zeros(grid.pp, dtype=np.int64)
    for c, content in enumerate(contents):
        for block, count in content:
            dense[c % grid.pp] += count * sync.dense[block, row]
            experts[c % grid.pp] += count * sync.experts[block, row]
    return dense, experts


def _static_bytes(problem: Problem, grid: Grid, priced: Priced, contents: tuple[Content, ...]) -> tuple[tuple[str, IntArray], ...]:
    """Parameters, gradients, optimizer states and workspace of each rank (ceil of equal shards)."""
    sync, row = priced.meshes.sync, priced.mesh_row
    dense, experts = _rank_elements(priced, grid, contents)
    frozen = np.zeros(grid.pp, dtype=np.int64)
    for c, content in enumerate(contents):
        for block, count in content:
            frozen[c % grid.pp] += count * sync.frozen[block, row]
    shard = (int(sync.shard[row]), int(sync.expert_shard[row]))

    def held(level: int) -> IntArray:
        cut = shard if grid.zero >= level else (1, 1)
        return -(-dense // cut[0]) - (-experts // cut[1])

    parameters = (held(3) + frozen) * (problem.job.parameter.bits // 8)
    if grid.zero == 3:
        largest = np.array([max((int(sync.dense[b, row] + sync.experts[b, row]) for b, _ in rank), default=0) for rank in _by_rank(grid, contents)])
        parameters = parameters + largest * (1 + problem.runtime.gather_prefetch) * (problem.job.parameter.bits // 8)
    on_device = held(1) * problem.job.optimizer.state_bytes * (100 - grid.offload) // 100
    return (
        ("parameters", parameters),
        ("gradients", held(2) * (problem.runtime.gradient_dtype.bits // 8)),
        ("optimizer", on_device),
        ("workspace", np.full(grid.pp, problem.runtime.workspace_bytes, dtype=np.int64)),
    )


def _by_rank(grid: Grid, contents: tuple[Content, ...]) -> list[list[tuple[int, int]]]:
    ranks: list[list[tuple[int, int]]] = [[] for _ in range(grid.pp)]
    for c, content in enumerate(contents):
        ranks[c % grid.pp].extend(content)
    return ranks


def _transients(problem: Problem, grid: Grid, priced: Priced, contents: tuple[Content, ...]) -> IntArray:
    """Largest temporary of each rank: one layer's activations while it is recomputed, or an embedding's weight gradient."""
    result = np.zeros(grid.pp, dtype=np.int64)
    for rank, blocks in enumerate(_by_rank(grid, contents)):
        for block, _ in blocks:
            kinds = {o.klass.value for o in problem.model.blocks[block].operators}
            if kinds & {"embed", "head"}:
                result[rank] = max(result[rank], int(priced.meshes.embedding_bytes[priced.mesh_row]))
            elif grid.recompute is Recompute.FULL:
                result[rank] = max(result[rank], int(priced.layers.transient_bytes[block, priced.layer_row]))
    return result


def _logits(priced: Priced, contents: tuple[Content, ...], problem: Problem, grid: Grid) -> IntArray:
    result = np.zeros(grid.pp, dtype=np.int64)
    for c, content in enumerate(contents):
        if any(o.klass.value == "head" for block, _ in content for o in problem.model.blocks[block].operators):
            result[c % grid.pp] = priced.layers.logits_bytes[priced.layer_row]
    return result


__all__ = ["GEMM", "PHASES", "PART_NAMES", "Priced", "StepCosts", "price_grid", "step_costs"]
