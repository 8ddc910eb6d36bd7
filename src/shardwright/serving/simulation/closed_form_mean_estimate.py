"""Mean-value estimate of many deployments in closed form, to rank them.

A fixed point of batch size, contexts and prompts. In the steady state D requests decode, and an
iteration ends D / n of them, n being its iterations of decode: (O - 1) / m for answers of O tokens
at m tokens an iteration. As many prompts of I tokens begin, so an iteration has q = D I / n tokens
of prompts beside. A prompt takes p = max(1, I / (budget - D (draft tokens + 1))) iterations where
batches are mixed; so of N requests that run at once ::

    D (1 + p / n) = N,    N = min(concurrency, sequences, requests whose mean fits in the cache)
    iteration t = the step table's at D requests with contexts I + O / 2 and q tokens of prompts
    TPOT = t n / (O - 1),   requests a second X = D / (n t),   TTFT = concurrency / X - (O - 1) TPOT

Where prompts run alone an iteration of decode is followed by the time of D / n prompts. An open
stream of r requests a second has the D that serves it, up to the N of endless concurrency, and then
a queue without end. A run that begins with a burst of C of its R requests has the mean of both: C
wait for half of all their prompts.

The estimate ranks, and bounds nothing: spread of lengths, percentiles, and iterations that are
equal only in the mean are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.kernel_compilation import allocation_free, inner
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.serving_engines.serving_engine import Admission, Batching
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.step_times.iteration_seconds import exposed_host_seconds
from shardwright.serving.step_times.step_table import StepTable

STEPS: Final = 40
"""Bisection steps."""

# Columns of a deployment.
(
    _BUDGET,
    _SEQUENCES,
    _TOKENS_HELD,
    _MIXES,
    _WHOLE,
    _DRAFT_TOKENS,
    _MEAN_TOKENS,
    _RANKS,
    _HOST,
    _HOST_SEQUENCE,
    _ANSWER,
    _OVERLAPPED,
    _PIECEWISE,
    _STAGES,
    _CHUNKED,
    _PADS,
    _NUM_COLUMNS,
) = range(17)
# Columns of the result.
_TPOT, _TTFT, _E2E, _RATE, _DECODING, _ITERATION, _NUM_RESULTS = range(7)

_SAME_COLUMNS = (
    *("tokens", "replayed", "launched", "replaying", "launching", "captured"),
    *("sequences", "head", "prompt_seconds"),
)
"""Columns of a step table with the same name in `StackedTables`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLoad:
    """Mean traffic of a deployment: prompt and answer lengths, and concurrency or request rate.

    Args:
        inputs, outputs: tokens of a prompt and of an answer.
        concurrency: requests in flight of a closed loop.
        per_second: requests a second of an open stream.
        requests: requests of a run that begins with a burst, 0 = endless.
    """

    inputs: float
    outputs: float
    concurrency: float = 0.0
    per_second: float = 0.0
    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeanEstimate:
    """Estimated mean latency and throughput of each of n deployments, as (n,) columns.

    Args:
        tpot_s, ttft_s, e2e_s: seconds of a further token, to the first token, and of a request; inf
            where a stream exceeds the capacity.
        requests_per_second, tokens_per_second: throughput of all workers.
        decoding: requests of a rank that decode.
        iteration_s: seconds of an iteration.
    """

    tpot_s: FloatArray
    ttft_s: FloatArray
    e2e_s: FloatArray
    requests_per_second: FloatArray
    tokens_per_second: FloatArray
    decoding: FloatArray
    iteration_s: FloatArray


class StackedTables(NamedTuple):
    """Step tables of n deployments, concatenated.

    numbers: (n, columns) scalars; fields ending in `_at`: (n + 1,) index where each table's points
        begin; the other fields are the tables' columns.
    """

    numbers: FloatArray
    tokens_at: IntArray
    tokens: FloatArray
    replayed: FloatArray
    launched: FloatArray
    replaying: FloatArray
    launching: FloatArray
    captured_at: IntArray
    captured: FloatArray
    sequences_at: IntArray
    sequences: FloatArray
    head: FloatArray
    start: FloatArray
    slope: FloatArray
    windowed: FloatArray
    prompts_at: IntArray
    prompts: FloatArray
    prompt_seconds: FloatArray


def stack_tables(
    tables: Sequence[StepTable], fleets: Sequence[Fleet], *, context: float
) -> StackedTables:
    """Concatenate n deployments' step tables and fleets; `context` = mean tokens seen, for windows.

    Args:
        context: mean tokens that a decoding request sees, for windows.
    """
    numbers = np.array(
        [_deployment_scalars(table, fleet) for table, fleet in zip(tables, fleets, strict=True)],
        dtype=np.float64,
    )
    windowed = [
        sum(
            (
                row * min(context, float(w))
                for w, row in zip(t.windows, t.window_slope, strict=True)
            ),
            np.zeros(len(t.sequences)),
        )
        for t in tables
    ]
    return StackedTables(
        numbers=numbers.reshape(len(tables), _NUM_COLUMNS),
        tokens_at=_start_offsets([len(t.tokens) for t in tables]),
        captured_at=_start_offsets([len(t.captured) for t in tables]),
        sequences_at=_start_offsets([len(t.sequences) for t in tables]),
        start=_concatenated([t.decode_start for t in tables]),
        slope=_concatenated([t.decode_slope for t in tables]),
        windowed=_concatenated(windowed),
        prompts_at=_start_offsets([len(t.prompt_tokens) for t in tables]),
        prompts=_concatenated([t.prompt_tokens for t in tables]),
        **{
            name: _concatenated([getattr(table, name) for table in tables])
            for name in _SAME_COLUMNS
        },
    )


def estimate_stacked(stacked: StackedTables, load: MeanLoad) -> MeanEstimate:
    """Estimate mean latencies in seconds and rates of each stacked deployment under one load."""
    estimates = np.zeros((len(stacked.numbers), _NUM_RESULTS))
    loads = np.array(
        [load.inputs, load.outputs, load.concurrency, load.per_second, load.requests],
        dtype=np.float64,
    )
    _solve_all(stacked, loads, estimates)
    return MeanEstimate(
        tpot_s=estimates[:, _TPOT],
        ttft_s=estimates[:, _TTFT],
        e2e_s=estimates[:, _E2E],
        requests_per_second=estimates[:, _RATE],
        tokens_per_second=estimates[:, _RATE] * load.outputs,
        decoding=estimates[:, _DECODING],
        iteration_s=estimates[:, _ITERATION],
    )


def _deployment_scalars(table: StepTable, fleet: Fleet) -> list[float]:
    """Scalars of one deployment's scheduler, fleet and step table, in the order of `numbers`."""
    scheduler = fleet.scheduler
    return [
        scheduler.token_budget,
        scheduler.max_sequences,
        scheduler.blocks * scheduler.block_tokens,
        scheduler.batching is not Batching.PREFILL_FIRST or scheduler.mixes_decode,
        scheduler.admission is Admission.WHOLE,
        scheduler.draft_tokens,
        float(fleet.acceptance.chances(scheduler.draft_tokens)[2]),
        fleet.workers * fleet.ranks,
        table.host_s,
        table.host_sequence_s,
        table.answer_s,
        table.asynchronous,
        table.piecewise,
        max(1, table.stages),
        scheduler.chunked_prefill,
        table.pads,
    ]


def _start_offsets(counts: list[int]) -> IntArray:
    """(n + 1,) start of each table's points in the concatenated columns: 0 and running sums."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _concatenated(columns: list[FloatArray] | list[IntArray]) -> FloatArray:
    """Concatenate columns to one float array; empty for no columns."""
    return np.concatenate(columns).astype(np.float64) if columns else np.zeros(0)


@inner
def _interpolated(
    points: FloatArray, values: FloatArray, start: int, stop: int, at: float
) -> float:
    """Linear value at `at` on points[start:stop]; constant before them, extrapolated after."""
    last_index = stop - 1
    if last_index == start or at <= points[start]:
        return float(values[start])
    low, high = start, last_index
    while high - low > 1:
        middle = (low + high) // 2
        if points[middle] <= at:
            low = middle
        else:
            high = middle
    return float(
        values[low]
        + (values[high] - values[low]) * (at - points[low]) / (points[high] - points[low])
    )


@inner
def _captured_size(stacked: StackedTables, i: int, tokens: float) -> float:
    """Smallest captured size >= `tokens` (equal, unless graphs are padded); -1 = none."""
    for place in range(stacked.captured_at[i], stacked.captured_at[i + 1]):
        size = stacked.captured[place]
        if size >= tokens:
            return float(size) if stacked.numbers[i, _PADS] > 0.0 or size - tokens < 0.5 else -1.0
    return -1.0


@inner
def _iteration(
    stacked: StackedTables,
    i: int,
    decoding: float,
    context: float,
    prompt_tokens: float,
    length: float,
) -> float:
    """Seconds of an iteration with `decoding` decodes and `prompt_tokens` of prompts of `length`.

    Args:
        length: tokens of a prompt.
    """
    numbers = stacked.numbers[i]
    tokens = decoding * (numbers[_DRAFT_TOKENS] + 1) + prompt_tokens
    first_point, end_point = stacked.tokens_at[i], stacked.tokens_at[i + 1]
    padded = (
        _captured_size(stacked, i, tokens)
        if prompt_tokens == 0.0 or numbers[_PIECEWISE] > 0.0
        else -1.0
    )
    if padded >= 0.0:
        base = _interpolated(stacked.tokens, stacked.replayed, first_point, end_point, padded)
        handover = _interpolated(stacked.tokens, stacked.replaying, first_point, end_point, padded)
    else:
        base = _interpolated(stacked.tokens, stacked.launched, first_point, end_point, tokens)
        handover = _interpolated(stacked.tokens, stacked.launching, first_point, end_point, tokens)
    low, high = stacked.sequences_at[i], stacked.sequences_at[i + 1]
    num_ended = prompt_tokens / length
    device = base + _interpolated(stacked.sequences, stacked.head, low, high, decoding + num_ended)
    if decoding > 0.0:
        device += _interpolated(stacked.sequences, stacked.start, low, high, decoding)
        device += (
            _interpolated(stacked.sequences, stacked.slope, low, high, decoding)
            * decoding
            * context
        )
        device += _interpolated(stacked.sequences, stacked.windowed, low, high, decoding) * decoding
    if prompt_tokens > 0.0:
        prompt_attention = _interpolated(
            stacked.prompts,
            stacked.prompt_seconds,
            stacked.prompts_at[i],
            stacked.prompts_at[i + 1],
            length,
        )
        device += prompt_attention * num_ended
    host = numbers[_HOST] + numbers[_HOST_SEQUENCE] * (decoding + num_ended)
    if numbers[_OVERLAPPED] > 0.0:
        host = exposed_host_seconds(host + handover, device)
    return float(device + host + numbers[_ANSWER])


@inner
def _prompt_iterations(numbers: FloatArray, decoding: float, inputs: float) -> float:
    """Iterations (at least 1, fractional) that a prompt shares with decodes; 0 if it runs alone."""
    if numbers[_MIXES] == 0.0:
        return 0.0
    room = max(1.0, numbers[_BUDGET] - decoding * (numbers[_DRAFT_TOKENS] + 1))
    return float(max(1.0, inputs / room))


@inner
def _decode_interval(
    stacked: StackedTables, i: int, decoding: float, inputs: float, outputs: float
) -> float:
    """Mean seconds from one decode iteration to the next, with other requests' prompts between."""
    numbers = stacked.numbers[i]
    answer = max(1.0, (outputs - 1.0) / numbers[_MEAN_TOKENS])
    prompts = decoding / answer * inputs
    context = inputs + outputs / 2.0
    if numbers[_MIXES] > 0.0:
        room = max(1.0, numbers[_BUDGET] - decoding * (numbers[_DRAFT_TOKENS] + 1))
        prompt_tokens = min(prompts, room)
        # The time is the mean of iterations with a prompt and without, weighted by their shares.
        share = min(1.0, prompt_tokens / min(inputs, room))
        with_prompts = (
            _iteration(stacked, i, decoding, context, prompt_tokens / max(share, 1e-12), inputs)
            if prompt_tokens > 0.0
            else 0.0
        )
        decode_only = _iteration(stacked, i, decoding, context, 0.0, inputs)
        return float(share * with_prompts + (1.0 - share) * decode_only)
    chunk = (
        min(numbers[_BUDGET], max(inputs, prompts))
        if numbers[_CHUNKED] > 0.0
        else max(inputs, prompts)
    )
    prompts_alone = _iteration(stacked, i, 0.0, 0.0, chunk, inputs) * prompts / chunk
    return float(_iteration(stacked, i, decoding, context, 0.0, inputs) + prompts_alone)


@inner
def _num_decoding(numbers: FloatArray, running: float, inputs: float, answer: float) -> float:
    """Number of `running` requests that decode, by bisection; `answer` = decode iterations each."""
    low, high = 0.0, running
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if middle * (1.0 + _prompt_iterations(numbers, middle, inputs) / answer) > running:
            high = middle
        else:
            low = middle
    return (low + high) / 2.0


@inner
def _solve(stacked: StackedTables, i: int, loads: FloatArray, estimate: FloatArray) -> None:
    """Write deployment `i`'s latencies (s), requests/s and decodes per rank to `estimate`."""
    numbers = stacked.numbers[i]
    inputs, outputs = loads[0], loads[1]
    answer = max(1.0, (outputs - 1.0) / numbers[_MEAN_TOKENS])
    tokens_held = inputs + (outputs if numbers[_WHOLE] > 0.0 else outputs / 2.0)
    max_running = min(numbers[_SEQUENCES] * numbers[_STAGES], numbers[_TOKENS_HELD] / tokens_held)
    concurrency = loads[2] / numbers[_RANKS]
    running = max_running if loads[2] == 0.0 else min(concurrency, max_running)
    decoding = _num_decoding(numbers, running, inputs, answer)
    if loads[2] == 0.0:
        target_rate = loads[3] / numbers[_RANKS]
        low, high = 0.0, decoding
        if (
            decoding / (answer * _decode_interval(stacked, i, decoding, inputs, outputs))
            < target_rate
        ):
            low = decoding
        for _ in range(STEPS):
            decoding = (low + high) / 2.0
            if (
                decoding / (answer * _decode_interval(stacked, i, decoding, inputs, outputs))
                < target_rate
            ):
                low = decoding
            else:
                high = decoding
    # Each pipeline stage works on a batch of its own, with an equal share of the requests.
    cycle = _decode_interval(stacked, i, decoding / numbers[_STAGES], inputs, outputs)
    rate = decoding / (answer * cycle)
    estimate[_DECODING], estimate[_ITERATION] = decoding, cycle
    estimate[_TPOT] = cycle * answer / max(1.0, outputs - 1.0)
    estimate[_RATE] = rate * numbers[_RANKS]
    prompt_iteration = _iteration(
        stacked,
        i,
        decoding if numbers[_MIXES] > 0.0 else 0.0,
        inputs,
        min(inputs, numbers[_BUDGET]),
        inputs,
    )
    prompt = prompt_iteration * max(1.0, inputs / numbers[_BUDGET])
    if loads[2] > 0.0:
        residence = concurrency / rate
        first_token = max(prompt, residence - (outputs - 1.0) * estimate[_TPOT])
        if loads[4] > 0.0:
            burst = concurrency * inputs / 2.0 * prompt_iteration / min(inputs, numbers[_BUDGET])
            share = min(1.0, loads[2] / loads[4])
            first_token = share * max(first_token, burst) + (1.0 - share) * first_token
        estimate[_TTFT] = first_token
    else:
        overloaded = rate * numbers[_RANKS] < loads[3] * (1.0 - 1e-6)
        estimate[_TTFT] = np.inf if overloaded else prompt + cycle / 2.0
    estimate[_E2E] = estimate[_TTFT] + (outputs - 1.0) * estimate[_TPOT]


@allocation_free
def _solve_all(stacked: StackedTables, loads: FloatArray, results: FloatArray) -> None:
    """Write the estimate of every stacked deployment under one load to its row of `results`."""
    for i in range(stacked.numbers.shape[0]):
        _solve(stacked, i, loads, results[i])
