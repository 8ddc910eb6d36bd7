"""Arrays and records that the B0 kernel reads: cost tables, pipelines, strategies and choices.

Numba takes apart each array that a function receives, so the kernel has one array of records for
all columns of the same axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray, RecordArray

SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED = 0, 1, 2


class Costs(NamedTuple):
    """Tables of seconds and bytes as arrays, by block and by layer row or mesh row.

    l = layer row, h = mesh row, t = block.

    Args:
        forward, backward, selective, full: (t, l) seconds.
        saved: (t, modes, l).
        transient: (t, l) bytes, zero for blocks that are no layers.
        border: (l, 2 streams x tiers) seconds of a send of each stream across each tier, or one
            farther out if that is faster; then across just it.
        logits: (l,).
        gather, reduce, all_reduce, fetch, refetch, scatter, apart: (t, h) seconds of one layer.
        dense, experts, frozen, frozen_dense, frozen_experts: (t, h) elements.
        unit, root: (t, h) elements that ZeRO-3 gathers for a block's own work, and for the whole
            step.
        regathered: elements gathered before a backward.
        logits_blocks, overlap_buffers: (l,) bytes.
        copied: (t, h) elements of tied weights that another block owns.
        spread: (t, h) elements that more devices sum than dp x cp.
        shard, expert_shard: (h,).
        norm: (h,) seconds.
        tied: (2, h) seconds to sum the weights that both ends share, without and with ZeRO.
        communicators: (h,) bytes.
        table: (t, h) bytes of the gradient of a table.
        scales: (h,) seconds that each pass of a chunk waits.
        passes: (h,) bytes an element of passes over whole gradients.
        slowdown: (h,) of kernels beside collectives.
        gather_copy, regather_copy, reduce_copy: (t, h) seconds of copies around collectives.
        host_gradient: (t, h) seconds of a microbatch's copies of reduced gradients between device
            and host.
    """

    forward: FloatArray
    backward: FloatArray
    selective: FloatArray
    full: FloatArray
    saved: FloatArray
    transient: FloatArray
    border: FloatArray
    logits: FloatArray
    gather: FloatArray
    reduce: FloatArray
    all_reduce: FloatArray
    fetch: FloatArray
    refetch: FloatArray
    scatter: FloatArray
    apart: FloatArray
    dense: FloatArray
    experts: FloatArray
    spread: FloatArray
    frozen: FloatArray
    frozen_dense: FloatArray
    frozen_experts: FloatArray
    unit: FloatArray
    root: FloatArray
    regathered: FloatArray
    shard: FloatArray
    expert_shard: FloatArray
    norm: FloatArray
    tied: FloatArray
    passes: FloatArray
    table: FloatArray
    logits_blocks: FloatArray
    overlap_buffers: FloatArray
    copied: FloatArray
    communicators: FloatArray
    slowdown: FloatArray
    scales: FloatArray
    gather_copy: FloatArray
    regather_copy: FloatArray
    reduce_copy: FloatArray
    host_gradient: FloatArray


class Patterns(NamedTuple):
    """Number of blocks on each examined rank, for each pipeline shape (pp, vpp).

    p = pattern, s = one of the examined ranks, t = block, w = way in which groups lie.

    Blocks on ranks whose groups lie otherwise are other blocks, which stand behind those of the
    first way.

    Args:
        ranks, chunks_per_rank, looked: (p,).
        rank: (p, s).
        stage, before, own, least: (p, s, t) blocks on the rank; in chunks 0..s-1; in chunk s; the
            fewest in any of its chunks.
        around: (p, s, t) blocks before the rank's last chunk, and p times that chunk's less the
            rank's.
        pieces: (p, s) of chunk s.
        first_pieces: (p,) of chunk 0.
        total: (p, t).
        redone, redone_before, redone_around, redone_own, redone_least: recomputed layers for each
            recompute option k: (p, s, k, w).
        has_head: (p, s) the rank holds the head.
        first: (p, t) blocks of chunk 0.
        crossed, crossed_around, sends: (p, s, k) borders of one stream and one tier before chunk s;
            before the rank's last chunk; that the rank sends across a microbatch, forward and
            backward.
        crossed_total: (p, k) of all. Where the tier of each border is not known, the innermost
            possible one stands for all.
    """

    ranks: IntArray
    chunks_per_rank: IntArray
    looked: IntArray
    rank: IntArray
    stage: FloatArray
    before: FloatArray
    around: FloatArray
    own: FloatArray
    least: FloatArray
    pieces: FloatArray
    first: FloatArray
    first_pieces: FloatArray
    total: FloatArray
    redone: FloatArray
    redone_before: FloatArray
    redone_around: FloatArray
    redone_own: FloatArray
    redone_least: FloatArray
    redone_total: FloatArray
    has_head: IntArray
    crossed: FloatArray
    crossed_around: FloatArray
    crossed_total: FloatArray
    sends: FloatArray


class Outer(NamedTuple):
    """Strategies without their memory choices: one row for each layout and schedule; i = row.

    layer, mesh, pattern: rows of the tables (mesh: that of the whole group). border: column of the
    table for the first of the pattern's borders. start: first member's place in the output. jitter:
    factor on its seconds.
    """

    layer: IntArray
    mesh: IntArray
    pattern: IntArray
    schedule: IntArray
    microbatches: IntArray
    border: IntArray
    zero_list: IntArray
    redo_list: IntArray
    start: IntArray
    jitter: FloatArray


class ChoiceArrays(NamedTuple):
    """Memory choices that each strategy is combined with: ZeRO stages, recompute and offload.

    ZeRO options: stage, and which sharding group (offset of its mesh row). Recompute options: mode
    (0 none, 1 selective, 2 full), k (index of recomputed layers) and modules (place of the set of
    modules that run again: the tables have all layer rows under each set). offload: percent.
    zero_lists, redo_lists: rows of option numbers, -1 = end.
    """

    zero_stage: IntArray
    zero_shard: IntArray
    redo_mode: IntArray
    redo_layers: IntArray
    redo_modules: IntArray
    offload: IntArray
    zero_lists: IntArray
    redo_lists: IntArray


class ProblemNumbers(NamedTuple):
    """Numbers of the problem that the B0 kernel needs: bytes, update rates and runtime switches.

    Capacity, workspace and context are in bytes.

    Args:
        layer_block: the only block that is a layer, of the first way in which groups lie; -1 =
            there are several.
        blocks: number of blocks of one way.
        layer_rows: rows of the tables under one set of modules.
        gradients_leave: from ZeRO-2 on, gradients of offloaded states go to the host
            (`Runtime.gradients_on_host`).
        left_rate: `host_rate` there.
        blocks_plain, blocks_several: sends hold up a rank of one chunk, of several.
    """

    capacity: float
    workspace: float
    context: float
    parameter_bytes: float
    shard_bytes: float
    frozen_shard_bytes: float
    gradient_bytes: float
    own_gradient_bytes: float
    state_bytes: float
    prefetch: float
    reuse: float
    update_bytes: float
    bandwidth: float
    host_rate: float
    left_rate: float
    jitter: float
    every_microbatch: bool
    gradients_leave: bool
    overlap_gather: bool
    blocks_plain: bool
    blocks_several: bool
    layer_block: int
    blocks: int
    layer_rows: int
    reserve: float


class CostRecords(NamedTuple):
    """`Costs` as arrays of records for the kernel, one array for all columns of the same axes.

    Layers (l, t), rows (l,), meshes (h, t), groups (h,); saved (l, t, modes).
    """

    layers: RecordArray
    rows: RecordArray
    meshes: RecordArray
    groups: RecordArray
    saved: FloatArray
    border: FloatArray


class PatternRecords(NamedTuple):
    """`Patterns` as arrays of records for the kernel, one array for all columns of the same axes.

    Pipelines (p,), ranks (p, s), blocks (p, s, t), redone (p, s, k, w) and borders (p, s, k).
    Columns without s are the same for all examined ranks.
    """

    pipelines: RecordArray
    ranks: RecordArray
    blocks: RecordArray
    redone: RecordArray
    borders: RecordArray


class Scratch(NamedTuple):
    """Working space for the sums of one outer row, filled once and read for each of its members.

    s = examined rank, r = recompute option, o = offload option.

    Args:
        ranks: (s,) local elements `dense`, `experts`, `spread`, `frozen` (and of it `frozen_dense`,
            `frozen_experts`), `largest`, `ends` (dense with copies of tied weights under
            `held_dense`), seconds `reduce_own`, `gather_all`, of borders on the way to its first
            chunk, `reached`, from there round to its last one and back, `beyond`, and that hold it
            up, `sends`; and chunks in flight, `flying`.
        redos: (r, s) `live`, bytes of activations, logits and temporaries at the fullest, and
            `blocks`, the same as the allocator's blocks; seconds of a microbatch: `work` on the
            rank, `head`, `tail` of the chunks before it, forward and back, `around` of
            `Patterns.around`, `own` of chunk s's backward.
        way: (r,) seconds of a microbatch's way through all chunks.
        held: (o, s) bytes of parameters, gradients, states and workspace.
        update: (o,) seconds of the slowest update.
    """

    ranks: RecordArray
    redos: RecordArray
    way: FloatArray
    held: FloatArray
    update: FloatArray


def cost_records(costs: Costs) -> CostRecords:
    """Convert the cost tables to arrays of records for the kernel, by row, then block."""
    return CostRecords(
        layers=_records(
            {
                name: getattr(costs, name).T
                for name in ("forward", "backward", "selective", "full", "transient")
            }
        ),
        rows=_records(
            {name: getattr(costs, name) for name in ("logits", "logits_blocks", "overlap_buffers")}
        ),
        meshes=_records({name: getattr(costs, name).T for name in BY_MESH}),
        groups=_records(
            {name: getattr(costs, name) for name in _BY_GROUP}
            | {"tied_all_reduce": costs.tied[0], "tied_reduce": costs.tied[1]}
        ),
        saved=np.ascontiguousarray(costs.saved.transpose(2, 0, 1)),
        border=costs.border,
    )


def pattern_records(patterns: Patterns) -> PatternRecords:
    """Convert the pipeline patterns to arrays of records for the kernel, by their axes."""
    blocks = {
        name: getattr(patterns, name) for name in ("stage", "before", "around", "own", "least")
    }
    redone = {
        name: getattr(patterns, f"redone_{name}") for name in ("before", "around", "own", "least")
    }
    return PatternRecords(
        pipelines=_records(
            {
                name: getattr(patterns, name)
                for name in ("ranks", "chunks_per_rank", "looked", "first_pieces")
            }
        ),
        ranks=_records({name: getattr(patterns, name) for name in ("rank", "pieces", "has_head")}),
        blocks=_records(
            blocks | {"first": patterns.first[:, None], "total": patterns.total[:, None]}
        ),
        redone=_records(
            redone | {"stage": patterns.redone, "total": patterns.redone_total[:, None]}
        ),
        borders=_records(
            {
                "before": patterns.crossed,
                "around": patterns.crossed_around,
                "total": patterns.crossed_total[:, None],
                "sends": patterns.sends,
            }
        ),
    )


def outer_records(outer: Outer) -> RecordArray:
    """Convert the strategies to one record per row for the kernel."""
    return _records(outer._replace(start=outer.start[:-1])._asdict())


def number_records(facts: ProblemNumbers) -> RecordArray:
    """Convert the numbers of the problem to one record for the kernel."""
    return _records({name: np.array([value]) for name, value in facts._asdict().items()})


def scratch_of(redo_options: int, offloads: int, *, ranks: int) -> Scratch:
    """Allocate the working space of one outer row of `ranks` examined ranks, filled with zeros."""
    return Scratch(
        ranks=np.zeros(ranks, dtype=_floats(_OF_RANK)),
        redos=np.zeros((redo_options, ranks), dtype=_floats(_OF_REDO)),
        way=np.zeros(redo_options),
        held=np.zeros((offloads, ranks)),
        update=np.zeros(offloads),
    )


BY_MESH: Final = (
    *(
        "gather",
        "reduce",
        "all_reduce",
        "fetch",
        "refetch",
        "scatter",
        "apart",
        "dense",
        "experts",
        "spread",
        "frozen",
    ),
    *(
        "frozen_dense",
        "frozen_experts",
        "unit",
        "root",
        "regathered",
        "copied",
        "gather_copy",
        "regather_copy",
        "reduce_copy",
        "table",
    ),
    "host_gradient",
)
"""Columns of `Costs` by block and mesh row."""
_BY_GROUP = ("shard", "expert_shard", "norm", "passes", "communicators", "slowdown", "scales")
_OF_RANK = (
    "dense",
    "experts",
    "spread",
    "frozen",
    "frozen_dense",
    "frozen_experts",
    "largest",
    "ends",
    "held_dense",
    "reduce_own",
    "gather_all",
    "flying",
    "reached",
    "beyond",
    "sends",
)
_OF_REDO = ("live", "blocks", "work", "head", "tail", "around", "own")


def _floats(names: Iterable[str]) -> np.dtype[np.void]:
    """Structured type with one float64 field for each name."""
    return np.dtype([(name, np.float64) for name in names])


def _records(columns: dict[str, FloatArray | IntArray]) -> RecordArray:
    """Pack columns into one array of records, one for each place of the broadcast columns."""
    shape = np.broadcast_shapes(*(column.shape for column in columns.values()))
    records = np.empty(
        shape,
        dtype=np.dtype([(name, column.dtype) for name, column in columns.items()], align=True),
    )
    for name, column in columns.items():
        records[name] = column
    return records
