"""Layer counts of chunks for several chunks a rank, and a lower bound on each spread of layers.

A shape here is the number of layers of every chunk.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.bounds.longest_path import rank_end_picoseconds
from shardwright.cost.bounds.rank_memory_bound import in_flight_microbatches as in_flight_rows
from shardwright.cost.bounds.seconds_to_event_simulation_picoseconds import picoseconds
from shardwright.cost.step.shared_scalar_cost_formulas import reserved_bytes, temporary_bytes
from shardwright.cost.step.strategy_task_seconds import MAX_PIECES
from shardwright.kernel_compilation import python_form
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.schedules.action_order_arrays import ActionTable, B, F
from shardwright.schedules.schedule_registry import schedule_table
from shardwright.search.joint.price_layer_runs_and_splits_of_each_rank import (
    BACKWARD,
    BORDER,
    COPIED,
    END_BYTES,
    ENDS_BACKWARD,
    ENDS_FORWARD,
    ENDS_SAVED,
    ENDS_STATIC,
    FORWARD,
    FULL,
    GATHER,
    HOST_FULL,
    LOGITS,
    LOGITS_BLOCKS,
    OUTSIDE,
    REDUCE,
    SAVED,
    SAVED_FULL,
    SCALES,
    SLOWER,
    STATIC,
    UPDATE,
    WEIGHT,
    Pipeline,
    Splits,
    in_flight,
)


@lru_cache(maxsize=1024)
def layer_counts(layers: int, ranks: int, chunks: int) -> IntArray:
    """(shapes, ranks x chunks) layers of each chunk: first and last <= 2 x mean, others equal.

    The first and the last chunk have any number up to twice the mean. The others are equal up to
    one, with the larger ones before or after the smaller ones. Or each rank spreads its layers
    equally, where the first and the last rank have any number and the others are equal (Megatron's
    first and last pipeline stage).
    """
    number = ranks * chunks
    most = 2 * -(-layers // number)
    spreads: dict[tuple[int, ...], None] = {}
    for first in range(most + 1):
        for last in range(most + 1):
            rest = layers - first - last
            if rest >= number - 2:
                size, more = divmod(rest, number - 2)
                large, small = (size + 1,) * more, (size,) * (number - 2 - more)
                spreads[(first, *large, *small, last)] = None
                spreads[(first, *small, *large, last)] = None
            rest = layers - chunks * (first + last)
            if first and last and ranks > 2 and rest > 0 and rest % (chunks * (ranks - 2)) == 0:
                spreads[
                    (first, *(rest // (chunks * (ranks - 2)),) * (ranks - 2), last) * chunks
                ] = None
    return np.array(list(spreads), dtype=np.int64).reshape(-1, number)


def layer_count_bounds(splits: Splits, pipe: Pipeline, shapes: IntArray) -> FloatArray:
    """(shapes,) lower bound in interleaved 1F1B step seconds by chunk layers, no recomputation.

    The longest over ranks of: head, work and tail; the work beside collectives; the work from the
    first backward on; each with the update.

    Args:
        splits: one split, with every position at its own price (not the cheapest of all).
    """
    p, v, m = pipe.ranks, pipe.chunks, float(pipe.microbatches)
    stops = np.cumsum(shapes, axis=1)
    starts = stops - shapes
    sums, fixed = splits.sums[0], splits.fixed[0]
    ends = sums[ENDS_FORWARD] + sums[ENDS_BACKWARD]
    layers = sums[FORWARD] + sums[BACKWARD] - ends
    time = layers[stops] - layers[starts] + 2.0 * fixed[SCALES]
    # The embedding and the head are in the first and last chunk also when those have no layer.
    time[:, 0] += ends[1]
    time[:, -1] += ends[-1] - ends[-2]
    rank_time = time.reshape(len(shapes), v, p).sum(axis=1)
    rank_layers = shapes.reshape(len(shapes), v, p).sum(axis=1)
    rank_update = np.diff(sums[UPDATE]).min() * rank_layers
    head = np.concatenate([np.zeros((len(shapes), 1)), np.cumsum(time[:, : p - 1], axis=1)], axis=1)
    rank = np.arange(p)
    sends = np.zeros(p)
    if pipe.blocking:
        passes = np.where(rank < p - 1, v, v - 1) + np.where(rank > 0, v, v - 1)
        sends = np.maximum(m * passes - 1.0, 0.0) * fixed[BORDER]
    through = head + 2.0 * rank * fixed[BORDER] + m * rank_time + sends
    slowed = (
        m * rank_time
        + sends
        + fixed[SLOWER] * np.diff(sums[GATHER] + sums[REDUCE]).min() * rank_layers
    )
    forward, backward = (
        _pass_seconds(sums, FORWARD, ENDS_FORWARD, starts, stops),
        _pass_seconds(sums, BACKWARD, ENDS_BACKWARD, starts, stops),
    )
    drained = _drain_bound(forward + fixed[SCALES], backward + fixed[SCALES], pipe)
    result: FloatArray = (np.maximum(np.maximum(through, slowed), drained) + rank_update).max(
        axis=1
    )
    return result


def any_order_bounds(
    splits: Splits, pipe: Pipeline, shapes: IntArray, owners: IntArray
) -> FloatArray:
    """(shapes,) lower bound in step seconds by chunk layers, any static order; inf = no fit.

    Every rank does all its work after the forward path to its first chunk; and all but its weight
    gradients before the backward path from there. Before its first backward it does no more
    forwards than fit. And the bytes it keeps of m microbatches, times the least time from F to I of
    a chunk, are at most its room times the time there is (`search.orders.makespan_lower_bounds`).

    Args:
        splits: as of `layer_count_bounds`.
        owners: (chunks,) rank of each chunk.
    """
    p, m = pipe.ranks, float(pipe.microbatches)
    stops = np.cumsum(shapes, axis=1)
    starts = stops - shapes
    sums, fixed = splits.sums[0], splits.fixed[0]
    forward = _pass_seconds(sums, FORWARD, ENDS_FORWARD, starts, stops) + fixed[SCALES]
    backward = _pass_seconds(sums, BACKWARD, ENDS_BACKWARD, starts, stops) + fixed[SCALES]
    weight = sums[WEIGHT][stops] - sums[WEIGHT][starts]
    # Weight gradients of the ends belong to the first and the last chunk also where those have no
    # layer: then none are counted as I.
    weight[:, 0], weight[:, -1] = backward[:, 0], backward[:, -1]
    inputs = backward - weight
    moves = np.concatenate(([0.0], (np.diff(owners) != 0) * fixed[BORDER]))
    out = np.cumsum(forward, axis=1) - forward + np.cumsum(moves)
    home = np.cumsum(inputs, axis=1) - inputs + np.cumsum(moves)
    # Row c of `of` marks the rank of chunk c. The first chunk of a rank has the shortest forward
    # and backward path.
    is_owner = (owners[:, None] == np.arange(p)).astype(np.float64)
    first = is_owner.argmax(axis=0)
    passes = ((moves > 0) + np.append(moves[1:] > 0, [False]).astype(np.int64)) @ is_owner
    sends = np.maximum(m * passes - 1.0, 0.0) * fixed[BORDER] if pipe.blocking else np.zeros(p)
    work, chain = (m * ((forward + rest) @ is_owner) + sends for rest in (backward, inputs))
    layers, head, tail = shapes @ is_owner, out[:, first], home[:, first]
    slowed = work + fixed[SLOWER] * np.diff(sums[GATHER] + sums[REDUCE]).min() * layers
    room = _activation_room(splits, pipe, shapes, owners)
    saved = (sums[SAVED] - sums[ENDS_SAVED])[stops] - (sums[SAVED] - sums[ENDS_SAVED])[starts]
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(saved > 0, forward / saved, np.inf)
    fastest = np.stack([rate[:, owners == rank].max(axis=1) for rank in range(p)], axis=1)
    # From the first F of all to the first I of a rank's deepest chunk.
    deepest = p * pipe.chunks - 1 - is_owner[::-1].argmax(axis=0)
    returns = (forward.sum(axis=1) + moves.sum())[:, None] + (
        inputs.sum(axis=1, keepdims=True) - np.cumsum(inputs, axis=1)
    )[:, deepest]
    full = np.minimum(np.where(np.isinf(fastest), np.inf, fastest * room), m * (forward @ is_owner))
    trip = np.cumsum((forward + inputs)[:, ::-1], axis=1)[:, ::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(room > 0, m * ((saved * trip) @ is_owner) / room, 0.0)
    remembered = np.maximum(returns + work - full, head + kept)
    ends = np.maximum(np.maximum(head + work, head + chain + tail), np.maximum(slowed, remembered))
    result: FloatArray = (ends + np.diff(sums[UPDATE]).min() * layers).max(axis=1)
    return np.where((room < (saved @ is_owner) * (1 - 1e-9)).any(axis=1), np.inf, result)


def _activation_room(
    splits: Splits, pipe: Pipeline, shapes: IntArray, owners: IntArray
) -> FloatArray:
    """(shapes, ranks) upper bound on a device's bytes for saved activations, all kept in full.

    As `price_layer_runs_and_splits_of_each_rank` has it for one chunk.
    """
    stops = np.cumsum(shapes, axis=1)
    sums, fixed = splits.sums[0], splits.fixed[0]
    first, last = owners[0], owners[-1]
    of = (owners[:, None] == np.arange(pipe.ranks)).astype(np.float64)
    layers = sums[STATIC] - sums[ENDS_STATIC]
    static = (layers[stops] - layers[stops - shapes]) @ of + pipe.workspace
    static[:, first] += sums[ENDS_STATIC, 1]
    static[:, last] += (
        sums[ENDS_STATIC, -1] - sums[ENDS_STATIC, -2] + (fixed[COPIED] if first != last else 0.0)
    )
    rank = np.arange(pipe.ranks)
    logits, blocks = fixed[LOGITS] * (rank == last), fixed[LOGITS_BLOCKS] * (rank == last)
    end = fixed[END_BYTES] * ((rank == first) | (rank == last))
    temporary = np.maximum(end, -logits)
    most = (pipe.capacity - fixed[OUTSIDE]) / (1.0 - 1e-9)
    result: FloatArray = (
        np.minimum(most / pipe.reserve, most + temporary + logits - blocks - end)
        - static
        - logits
        - temporary
    )
    return result


def _pass_seconds(
    sums: FloatArray, row: int, ends_row: int, starts: IntArray, stops: IntArray
) -> FloatArray:
    """(shapes, chunks) seconds of one pass: layers by row `row` of `sums`, ends by `ends_row`."""
    layers = sums[row] - sums[ends_row]
    result: FloatArray = layers[stops] - layers[starts]
    result[:, 0] += sums[ends_row, 1]
    result[:, -1] += sums[ends_row, -1] - sums[ends_row, -2]
    return result


def _drain_bound(forward: FloatArray, backward: FloatArray, pipe: Pipeline) -> FloatArray:
    """(shapes, ranks) lower bound in seconds from each rank's work after its first backward begins.

    Before that, one microbatch has been forward through all chunks and back through the later
    chunks, and the rank has done its warm-up, in rounds of p microbatches a chunk. After its last
    backward come those of the chunks before its first.
    """
    p, v, m = pipe.ranks, pipe.chunks, pipe.microbatches
    shapes = len(forward)
    behind = backward.sum(axis=1, keepdims=True) - np.cumsum(backward, axis=1)
    before = np.cumsum(backward, axis=1) - backward
    own_forward, own_backward = forward.reshape(shapes, v, p), backward.reshape(shapes, v, p)
    done = np.zeros((v, p))
    for rank in range(p):
        warm = np.arange(int(in_flight(p, v, rank, m)))
        done[:, rank] = np.bincount(warm // p % v, minlength=v)
    left = m * own_backward.sum(axis=1) + ((m - done)[None] * own_forward).sum(axis=1)
    result: FloatArray = forward.sum(axis=1)[:, None] + behind[:, -p:] + left + before[:, :p]
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeTimes:
    """Durations of each spread of layers for the longest path, in picoseconds.

    (shapes, kinds, chunks) and (shapes, chunks), without recomputation. Collectives and the update
    of the ends are left out: those of the layers, each as the cheapest, bound them.
    """

    shapes: IntArray
    durations: IntArray
    border: IntArray
    gather: IntArray
    reduce: IntArray
    pieces: IntArray
    update_s: FloatArray
    full: FloatArray
    slower: float


def shape_times(splits: Splits, pipe: Pipeline, shapes: IntArray, *, pieces: bool) -> ShapeTimes:
    """Durations in picoseconds by rows of chunk layers; `pieces` = reductions go in buckets.

    Args:
        splits: as of `layer_count_bounds`.
        pieces: a chunk's reduction is divided into buckets (`pieces_of`).
    """
    stops = np.cumsum(shapes, axis=1)
    starts = stops - shapes
    sums, fixed = splits.sums[0], splits.fixed[0]
    durations = np.zeros((len(shapes), 5, shapes.shape[1]), dtype=np.int64)
    durations[:, F] = picoseconds(
        _pass_seconds(sums, FORWARD, ENDS_FORWARD, starts, stops) + fixed[SCALES]
    )
    durations[:, B] = picoseconds(
        _pass_seconds(sums, BACKWARD, ENDS_BACKWARD, starts, stops) + fixed[SCALES]
    )
    rank_layers = shapes.reshape(len(shapes), pipe.chunks, pipe.ranks).sum(axis=1)
    return ShapeTimes(
        shapes=shapes,
        durations=durations,
        border=np.full(shapes.shape[1], int(fixed[BORDER] / 1e-12), dtype=np.int64),
        gather=picoseconds(np.diff(sums[GATHER]).min() * shapes * float(pipe.gathers_first)),
        reduce=picoseconds(np.diff(sums[REDUCE]).min() * shapes),
        pieces=np.clip(shapes, 1, MAX_PIECES) if pieces else np.ones_like(shapes),
        update_s=np.diff(sums[UPDATE]).min() * rank_layers.max(axis=1),
        full=sums[FULL],
        slower=float(fixed[SLOWER]),
    )


def layer_count_path_s(
    times: ShapeTimes, pipe: Pipeline, table: ActionTable, row: int, redone: IntArray | None = None
) -> float:
    """Lower bound in seconds on a step of spread `row`: the longest path through order `table`.

    Args:
        table: the order.
        redone: (chunks,) layers recomputed in full.
    """
    durations = times.durations[row]
    if redone is not None:
        starts = np.cumsum(times.shapes[row]) - times.shapes[row]
        durations = durations.copy()
        durations[B] += picoseconds(times.full[starts + redone] - times.full[starts])
    ready = rank_end_picoseconds(
        table.row_start,
        table.kind,
        table.chunk,
        table.microbatch,
        table.num_microbatches,
        durations,
        times.border,
        times.border,
        times.gather[row],
        times.reduce[row],
        np.zeros_like(times.reduce[row]),
        times.pieces[row],
        pipe.blocking,
        pipe.reduces_last,
        times.slower,
        np.zeros((2, times.shapes.shape[1])),
    )
    return float(int(ready.max())) * 1e-12 + float(times.update_s[row])


@lru_cache(maxsize=256)
def microbatches_in_memory(ranks: int, chunks: int, microbatches: int) -> tuple[FloatArray, ...]:
    """By rank: (rows, chunks) largest sets of microbatches that interleaved 1F1B holds at once.

    For each rank (rows, chunks), without rows that another row exceeds everywhere.
    """
    table = schedule_table(
        "interleaved-1f1b", num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=microbatches
    )
    result = []
    for rank in range(ranks):
        rows = in_flight_rows(table, rank)
        beaten = [(np.all(rows >= row, axis=1) & np.any(rows > row, axis=1)).any() for row in rows]
        result.append(rows[~np.array(beaten)])
    return tuple(result)


def least_full_recompute(splits: Splits, pipe: Pipeline, shape: IntArray) -> IntArray | None:
    """(chunks,) fewest first layers to recompute in full to fit, equal within a rank; None = none.

    The same number on all chunks of a rank. By lower bounds of each rank's bytes on a device and in
    host memory, as `price_layer_runs_and_splits_of_each_rank` has them for one chunk. More
    recomputation keeps more in host memory, so the fewest layers have the least there.
    """
    p, v = pipe.ranks, pipe.chunks
    sums, fixed, again = splits.sums[0], splits.fixed[0], splits.again[0]
    held = microbatches_in_memory(p, v, pipe.microbatches)
    stops = np.cumsum(shape)
    starts = stops - shape
    saved, full = sums[SAVED] - sums[ENDS_SAVED], sums[SAVED_FULL]
    static = (sums[STATIC] - sums[ENDS_STATIC])[stops] - (sums[STATIC] - sums[ENDS_STATIC])[starts]
    stored = saved[stops] - saved[starts]
    redone = np.zeros_like(shape)
    for rank in range(p):
        mine = slice(rank, None, p)
        last = rank == p - 1
        fix = (
            float(static[mine].sum())
            + pipe.workspace
            + (sums[ENDS_STATIC, 1] if rank == 0 else 0.0)
        )
        fix += float(sums[ENDS_STATIC, -1] - sums[ENDS_STATIC, -2] + fixed[COPIED]) if last else 0.0
        logits, blocks = (float(fixed[LOGITS]), float(fixed[LOGITS_BLOCKS])) if last else (0.0, 0.0)
        end = float(fixed[END_BYTES]) if last or rank == 0 else 0.0
        for first in range(int(shape[mine].max()) + 1):
            x = np.minimum(first, shape[mine])
            at = starts[mine]
            kept = (
                stored[mine]
                - (saved[at + x] - saved[at])
                + np.maximum(full[at + x] - full[at] - sums[ENDS_SAVED, 1] * (at == 0), 0.0)
            )
            made = float(again[1].min()) if first else 0.0
            temporary = python_form(temporary_bytes)(made, end, logits)
            allocated = fix + float((held[rank] @ kept).max()) + logits + temporary
            need = (
                python_form(reserved_bytes)(
                    allocated, temporary, logits, blocks + made + end, pipe.reserve
                )
                * (1.0 - 1e-9)
                + fixed[OUTSIDE]
            )
            if need <= pipe.capacity:
                redone[mine] = x
                break
        else:
            return None
    parked = sums[HOST_FULL][starts + redone] - sums[HOST_FULL][starts]
    host = np.array([(held[rank] @ parked[rank::p]).max() for rank in range(p)])
    of_node = host.reshape(-1, pipe.sharing).sum(axis=1)
    return None if (of_node > pipe.host_room * (1.0 + 1e-12)).any() else redone
