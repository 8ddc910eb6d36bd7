"""Seconds of an engine iteration, from a step table that is tabulated once for a run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.kernel_compilation import allocation_free, by_reference, inner
from shardwright.serving.deployments.scheduler_settings import SchedulerSettings
from shardwright.serving.policy.scheduler_state import (
    BEFORE,
    DECODES,
    SAMPLED,
    TOKENS,
    SchedulerState,
)
from shardwright.serving.step_times.step_table import StepTable

# Parts of an iteration's seconds, in the order of `ServedRequests.by_part`.
BASE, HEAD, DECODE, PROMPT, HOST, NUM_PARTS = range(6)
PARTS = (
    "products, norms, experts and sums",
    "logits and sampling",
    "attention of answers",
    "attention of prompts",
    "host",
)

# Scalars of `Columns`.
HOST_SECONDS, HOST_SEQUENCE, ANSWER, OVERLAPPED, PIECEWISE, LARGEST, NUM_SCALARS = range(7)

# Counts of an iteration: tokens, sampled requests, decoding requests, the sum of their contexts,
# requests in all, and 1 if there are prompts in it.
T, S, D, K, R, PROMPTS, NUM_COUNTS = range(7)


@by_reference
class Columns(NamedTuple):
    """A step table at every number of tokens and of sequences that a run can have, in seconds.

    Args:
        replayed, launched: (tokens + 1,) seconds of the base.
        replaying, launching: (tokens + 1,) seconds of the host.
        head, start, slope: (sequences + 1,) see `StepTable`.
        windows: (w,) tokens of each attention window.
        window_slope: (w, sequences + 1) seconds a context token.
        prompt_tokens, prompt_seconds: points of A, attention of a whole prompt.
        scalars: columns above.
    """

    replayed: FloatArray
    launched: FloatArray
    replaying: FloatArray
    launching: FloatArray
    head: FloatArray
    start: FloatArray
    slope: FloatArray
    windows: IntArray
    window_slope: FloatArray
    prompt_tokens: FloatArray
    prompt_seconds: FloatArray
    scalars: FloatArray


def tabulate_steps(table: StepTable, scheduler: SchedulerSettings, *, longest: int) -> Columns:
    """Tabulate a step table at every number of tokens and sequences that a scheduler can reach.

    Args:
        longest: tokens of the longest request.
    """
    sequences = np.arange(scheduler.max_sequences + 1, dtype=np.float64)
    max_prompt_tokens = (
        max(
            scheduler.token_budget,
            scheduler.prompt_tokens,
            0 if scheduler.chunked_prefill else longest,
        )
        + scheduler.block_tokens
    )
    tokens = np.arange(
        max_prompt_tokens + scheduler.max_sequences * (scheduler.draft_tokens + 1) + 1,
        dtype=np.float64,
    )
    captured = np.asarray(table.captured, dtype=np.int64)
    padded = tokens.copy()
    if len(captured):
        is_captured = tokens <= captured[-1]
        padded[is_captured] = captured[np.searchsorted(captured, tokens[is_captured])]
    windows = np.asarray(table.windows, dtype=np.int64)
    launched, launching = (
        interpolated(tokens, table.tokens, column) for column in (table.launched, table.launching)
    )
    replays = np.ones(len(tokens), dtype=np.bool_) if table.pads else tokens == padded
    return Columns(
        replayed=np.where(replays, interpolated(padded, table.tokens, table.replayed), launched),
        launched=launched,
        replaying=np.where(replays, interpolated(padded, table.tokens, table.replaying), launching),
        launching=launching,
        head=interpolated(sequences, table.sequences, table.head),
        start=interpolated(sequences, table.sequences, table.decode_start),
        slope=interpolated(sequences, table.sequences, table.decode_slope),
        windows=windows,
        window_slope=np.array(
            [interpolated(sequences, table.sequences, row) for row in table.window_slope]
        ).reshape(len(windows), len(sequences)),
        prompt_tokens=np.asarray(table.prompt_tokens, dtype=np.float64),
        prompt_seconds=np.asarray(table.prompt_seconds, dtype=np.float64),
        scalars=np.array(
            [
                table.host_s,
                table.host_sequence_s,
                table.answer_s,
                table.asynchronous,
                table.piecewise,
                captured[-1] if len(captured) else 0,
            ],
            dtype=np.float64,
        ),
    )


def interpolated(at: FloatArray, points: IntArray | FloatArray, values: FloatArray) -> FloatArray:
    """Values at `at`: linear between points, constant before them, extrapolated after them.

    Extrapolated after the last two points, constant before the first.
    """
    points = np.asarray(points, dtype=np.float64)
    at_points = np.interp(at, points, values)
    if len(points) > 1:
        is_beyond = at > points[-1]
        rise = (values[-1] - values[-2]) / (points[-1] - points[-2])
        at_points[is_beyond] = values[-1] + rise * (at[is_beyond] - points[-1])
    return np.asarray(at_points, dtype=np.float64)


@inner
def prompt_attention_seconds(columns: Columns, tokens: float) -> float:
    """Attention seconds of a whole prompt of `tokens` tokens in all blocks, interpolated."""
    points = columns.prompt_tokens
    last_index = len(points) - 1
    if last_index == 0:
        return float(columns.prompt_seconds[0])
    low, high = 0, last_index
    while high - low > 1:
        middle = (low + high) // 2
        if points[middle] <= tokens:
            low = middle
        else:
            high = middle
    rise = (columns.prompt_seconds[high] - columns.prompt_seconds[low]) / (
        points[high] - points[low]
    )
    return float(columns.prompt_seconds[low] + rise * (tokens - points[low]))


@inner
def seconds_at_tokens(values: FloatArray, tokens: int) -> float:
    """Value of a column at index `tokens`; extrapolated linearly after its end."""
    last_index = len(values) - 1
    if tokens <= last_index:
        return float(values[tokens])
    return float(
        values[last_index] + (values[last_index] - values[last_index - 1]) * (tokens - last_index)
    )


@inner
def exposed_host_seconds(host: float, device: float) -> float:
    """Seconds of host work not hidden behind concurrent device work: max(0, host - device)."""
    return max(0.0, host - device)


@inner
def seconds_by_part(
    columns: Columns, counts: FloatArray, prompts: float, windowed: float, parts: FloatArray
) -> float:
    """Seconds of an iteration from `counts` and the attention seconds given; fill `parts`.

    Args:
        counts: (NUM_COUNTS,) counts of the iteration.
        prompts: seconds of attention of parts of prompts.
        windowed: seconds of attention within windows.
    """
    tokens, sequences, decoding = int(counts[T]), int(counts[S]), int(counts[D])
    scalars = columns.scalars
    replays = tokens <= scalars[LARGEST] and (counts[PROMPTS] == 0.0 or scalars[PIECEWISE] > 0.0)
    parts[BASE] = seconds_at_tokens(columns.replayed if replays else columns.launched, tokens)
    parts[HEAD] = columns.head[sequences] if sequences > 0 else 0.0
    parts[DECODE] = (
        columns.start[decoding] + columns.slope[decoding] * counts[K] + windowed
        if decoding > 0
        else 0.0
    )
    parts[PROMPT] = prompts
    device = parts[BASE] + parts[HEAD] + parts[DECODE] + parts[PROMPT]
    host = scalars[HOST_SECONDS] + scalars[HOST_SEQUENCE] * counts[R]
    if scalars[OVERLAPPED] > 0.0:
        host = exposed_host_seconds(
            host + seconds_at_tokens(columns.replaying if replays else columns.launching, tokens),
            device,
        )
    parts[HOST] = host + scalars[ANSWER]
    return float(device + parts[HOST])


@allocation_free
def iteration_seconds(
    state: SchedulerState,
    columns: Columns,
    rank: int,
    slot: int,
    steady: IntArray,
    windows: IntArray,
    counts: FloatArray,
    parts: FloatArray,
) -> float:
    """Seconds of the iteration in a rank's slot beside `steady` decodes; fill `counts`, `parts`.

    Args:
        steady: (2,) requests that decode beside the entries of the batch, and the sum of their
            contexts.
        windows: (w,) sum of their context tokens in each window.
        counts, parts: receive the counts and the seconds of each part.
    """
    counts[:] = 0.0
    prompts, windowed = 0.0, 0.0
    size = state.batch_size[rank, slot]
    for entry in range(size):
        tokens, cached = (
            state.batch[rank, slot, entry, TOKENS],
            state.batch[rank, slot, entry, BEFORE],
        )
        counts[T] += tokens
        counts[S] += state.batch[rank, slot, entry, SAMPLED]
        if state.batch[rank, slot, entry, DECODES]:
            counts[D] += 1
            counts[K] += cached
        else:
            counts[PROMPTS] = 1.0
            prompts += prompt_attention_seconds(
                columns, float(cached + tokens)
            ) - prompt_attention_seconds(columns, float(cached))
    counts[R] = size + steady[0]
    counts[T] += steady[0]
    counts[S] += steady[0]
    counts[D] += steady[0]
    counts[K] += steady[1]
    for w in range(len(columns.windows)):
        window_tokens = float(windows[w])
        for entry in range(size):
            if state.batch[rank, slot, entry, DECODES]:
                window_tokens += min(state.batch[rank, slot, entry, BEFORE], columns.windows[w])
        windowed += columns.window_slope[w, int(counts[D])] * window_tokens
    return seconds_by_part(columns, counts, prompts, windowed, parts)
