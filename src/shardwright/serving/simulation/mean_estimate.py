"""The same in the mean, in closed form: a fixed point of batch, contexts and prompts between, to
rank deployments by.

In the steady state D requests decode, and an iteration ends D / n of them, n being its iterations
of decode: (O - 1) / m for answers of O tokens at m tokens an iteration. As many prompts of I tokens
begin, so an iteration has q = D I / n tokens of prompts beside. A prompt takes p = max(1, I /
(budget - D (guesses + 1))) iterations where batches are mixed; so of N requests that run at once ::

    D (1 + p / n) = N,    N = min(concurrency, sequences, what the cache holds in the mean)
    iteration t = the step table's at D requests with contexts I + O / 2 and q tokens of prompts
    TPOT = t n / (O - 1),   requests a second X = D / (n t),   TTFT = concurrency / X - (O - 1) TPOT

Where prompts run alone an iteration of decode is followed by D / n prompts' own time. An open
stream of r requests a second has the D that serves it, up to the N of endless concurrency, and then
a queue without end. A run that begins with a burst of C of its R requests has the mean of both: C
wait for half of all their prompts.

It ranks, and bounds nothing: spread of lengths, percentiles, and iterations that are alike only in
the mean are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.compiled import allocation_free, inner
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.engines.engine import Admission, Batching
from shardwright.serving.simulation.fleet import Fleet
from shardwright.serving.step_times.iteration_seconds import overhang
from shardwright.serving.step_times.step_table import StepTable

STEPS: Final = 40
"""Halvings of an interval."""

# Columns of a deployment.
(
    _BUDGET,
    _SEQUENCES,
    _TOKENS_HELD,
    _MIXES,
    _WHOLE,
    _GUESSES,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLoad:
    """Traffic in the mean: tokens of a prompt and an answer, and a closed loop's `concurrency` or
    requests `per_second`, of the whole deployment; `requests` of a run that begins with a burst, 0
    = endless.
    """

    inputs: float
    outputs: float
    concurrency: float = 0.0
    per_second: float = 0.0
    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeanField:
    """Of each deployment (n,): seconds of a further token, to the first, and of a request; requests
    and tokens a second of all workers; requests of a rank that decode; seconds of an iteration.
    Times are inf where a stream is more than can be served.
    """

    tpot_s: FloatArray
    ttft_s: FloatArray
    e2e_s: FloatArray
    requests_per_second: FloatArray
    tokens_per_second: FloatArray
    decoding: FloatArray
    iteration_s: FloatArray


class Stack(NamedTuple):
    """Step tables one behind the other: columns, and where each one's points begin (n + 1,)."""

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


def stack(tables: Sequence[StepTable], fleets: Sequence[Fleet], *, context: float) -> Stack:
    """Tables and fleets of n deployments as columns; `context`: mean tokens that a decoding request
    sees, for windows.
    """
    numbers = np.array(
        [_numbers(table, fleet) for table, fleet in zip(tables, fleets, strict=True)],
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
    return Stack(
        numbers=numbers.reshape(len(tables), _NUM_COLUMNS),
        tokens_at=_offsets([len(t.tokens) for t in tables]),
        tokens=_flat([t.tokens for t in tables]),
        replayed=_flat([t.replayed for t in tables]),
        launched=_flat([t.launched for t in tables]),
        replaying=_flat([t.replaying for t in tables]),
        launching=_flat([t.launching for t in tables]),
        captured_at=_offsets([len(t.captured) for t in tables]),
        captured=_flat([np.asarray(t.captured, dtype=np.float64) for t in tables]),
        sequences_at=_offsets([len(t.sequences) for t in tables]),
        sequences=_flat([t.sequences for t in tables]),
        head=_flat([t.head for t in tables]),
        start=_flat([t.decode_start for t in tables]),
        slope=_flat([t.decode_slope for t in tables]),
        windowed=_flat(windowed),
        prompts_at=_offsets([len(t.prompt_tokens) for t in tables]),
        prompts=_flat([t.prompt_tokens for t in tables]),
        prompt_seconds=_flat([t.prompt_seconds for t in tables]),
    )


def mean_field(stacked: Stack, load: MeanLoad) -> MeanField:
    """All deployments of a stack under one load."""
    result = np.zeros((len(stacked.numbers), _NUM_RESULTS))
    loads = np.array(
        [load.inputs, load.outputs, load.concurrency, load.per_second, load.requests],
        dtype=np.float64,
    )
    _solve_all(stacked, loads, result)
    return MeanField(
        tpot_s=result[:, _TPOT],
        ttft_s=result[:, _TTFT],
        e2e_s=result[:, _E2E],
        requests_per_second=result[:, _RATE],
        tokens_per_second=result[:, _RATE] * load.outputs,
        decoding=result[:, _DECODING],
        iteration_s=result[:, _ITERATION],
    )


def _numbers(table: StepTable, fleet: Fleet) -> list[float]:
    scheduler = fleet.scheduler
    return [
        scheduler.token_budget,
        scheduler.max_sequences,
        scheduler.blocks * scheduler.block_tokens,
        scheduler.batching is not Batching.PREFILL_FIRST or scheduler.mixes_decode,
        scheduler.admission is Admission.WHOLE,
        scheduler.guesses,
        float(fleet.guessing.chances(scheduler.guesses)[2]),
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


def _offsets(counts: list[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _flat(columns: list[FloatArray] | list[IntArray]) -> FloatArray:
    return np.concatenate(columns).astype(np.float64) if columns else np.zeros(0)


@inner
def _between(points: FloatArray, values: FloatArray, first: int, beyond: int, at: float) -> float:
    """Linear between points, beyond the last as between the last two, before the first as there."""
    last = beyond - 1
    if last == first or at <= points[first]:
        return float(values[first])
    low, high = first, last
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
def _padded(stacked: Stack, i: int, tokens: float) -> float:
    """The captured size that replays `tokens`; -1 = none does."""
    for place in range(stacked.captured_at[i], stacked.captured_at[i + 1]):
        size = stacked.captured[place]
        if size >= tokens:
            return float(size) if stacked.numbers[i, _PADS] > 0.0 or size - tokens < 0.5 else -1.0
    return -1.0


@inner
def _iteration(
    stacked: Stack, i: int, decoding: float, context: float, prompt_tokens: float, length: float
) -> float:
    """Seconds of an iteration of `decoding` requests and `prompt_tokens` tokens of prompts of
    `length` tokens.
    """
    numbers = stacked.numbers[i]
    tokens = decoding * (numbers[_GUESSES] + 1) + prompt_tokens
    first, end = stacked.tokens_at[i], stacked.tokens_at[i + 1]
    padded = (
        _padded(stacked, i, tokens) if prompt_tokens == 0.0 or numbers[_PIECEWISE] > 0.0 else -1.0
    )
    if padded >= 0.0:
        base = _between(stacked.tokens, stacked.replayed, first, end, padded)
        handing = _between(stacked.tokens, stacked.replaying, first, end, padded)
    else:
        base = _between(stacked.tokens, stacked.launched, first, end, tokens)
        handing = _between(stacked.tokens, stacked.launching, first, end, tokens)
    low, high = stacked.sequences_at[i], stacked.sequences_at[i + 1]
    ended = prompt_tokens / length
    device = base + _between(stacked.sequences, stacked.head, low, high, decoding + ended)
    if decoding > 0.0:
        device += _between(stacked.sequences, stacked.start, low, high, decoding)
        device += (
            _between(stacked.sequences, stacked.slope, low, high, decoding) * decoding * context
        )
        device += _between(stacked.sequences, stacked.windowed, low, high, decoding) * decoding
    if prompt_tokens > 0.0:
        whole = _between(
            stacked.prompts,
            stacked.prompt_seconds,
            stacked.prompts_at[i],
            stacked.prompts_at[i + 1],
            length,
        )
        device += whole * ended
    host = numbers[_HOST] + numbers[_HOST_SEQUENCE] * (decoding + ended)
    if numbers[_OVERLAPPED] > 0.0:
        host = overhang(host + handing, device)
    return float(device + host + numbers[_ANSWER])


@inner
def _prompt_iterations(numbers: FloatArray, decoding: float, inputs: float) -> float:
    """Iterations that a prompt takes beside `decoding` requests."""
    if numbers[_MIXES] == 0.0:
        return 0.0
    room = max(1.0, numbers[_BUDGET] - decoding * (numbers[_GUESSES] + 1))
    return float(max(1.0, inputs / room))


@inner
def _cycle(stacked: Stack, i: int, decoding: float, inputs: float, outputs: float) -> float:
    """Seconds from one token of a request to the next, prompts of others among them."""
    numbers = stacked.numbers[i]
    answer = max(1.0, (outputs - 1.0) / numbers[_MEAN_TOKENS])
    prompts = decoding / answer * inputs
    context = inputs + outputs / 2.0
    if numbers[_MIXES] > 0.0:
        room = max(1.0, numbers[_BUDGET] - decoding * (numbers[_GUESSES] + 1))
        part = min(prompts, room)
        # An iteration has a prompt in it or not: the time is that of those with, and those without,
        # in their shares.
        share = min(1.0, part / min(inputs, room))
        full = (
            _iteration(stacked, i, decoding, context, part / max(share, 1e-12), inputs)
            if part > 0.0
            else 0.0
        )
        bare = _iteration(stacked, i, decoding, context, 0.0, inputs)
        return float(share * full + (1.0 - share) * bare)
    chunk = (
        min(numbers[_BUDGET], max(inputs, prompts))
        if numbers[_CHUNKED] > 0.0
        else max(inputs, prompts)
    )
    alone = _iteration(stacked, i, 0.0, 0.0, chunk, inputs) * prompts / chunk
    return float(_iteration(stacked, i, decoding, context, 0.0, inputs) + alone)


@inner
def _decoding(numbers: FloatArray, running: float, inputs: float, answer: float) -> float:
    """Of requests that run, those that decode."""
    low, high = 0.0, running
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if middle * (1.0 + _prompt_iterations(numbers, middle, inputs) / answer) > running:
            high = middle
        else:
            low = middle
    return (low + high) / 2.0


@inner
def _solve(stacked: Stack, i: int, loads: FloatArray, result: FloatArray) -> None:
    """One deployment."""
    numbers = stacked.numbers[i]
    inputs, outputs = loads[0], loads[1]
    answer = max(1.0, (outputs - 1.0) / numbers[_MEAN_TOKENS])
    held = inputs + (outputs if numbers[_WHOLE] > 0.0 else outputs / 2.0)
    most = min(numbers[_SEQUENCES] * numbers[_STAGES], numbers[_TOKENS_HELD] / held)
    concurrency = loads[2] / numbers[_RANKS]
    running = most if loads[2] == 0.0 else min(concurrency, most)
    decoding = _decoding(numbers, running, inputs, answer)
    if loads[2] == 0.0:
        wanted = loads[3] / numbers[_RANKS]
        low, high = 0.0, decoding
        if decoding / (answer * _cycle(stacked, i, decoding, inputs, outputs)) < wanted:
            low = decoding
        for _ in range(STEPS):
            decoding = (low + high) / 2.0
            if decoding / (answer * _cycle(stacked, i, decoding, inputs, outputs)) < wanted:
                low = decoding
            else:
                high = decoding
    # Stages work on as many batches, each of its share of the requests.
    cycle = _cycle(stacked, i, decoding / numbers[_STAGES], inputs, outputs)
    rate = decoding / (answer * cycle)
    result[_DECODING], result[_ITERATION] = decoding, cycle
    result[_TPOT] = cycle * answer / max(1.0, outputs - 1.0)
    result[_RATE] = rate * numbers[_RANKS]
    alone = _iteration(
        stacked,
        i,
        decoding if numbers[_MIXES] > 0.0 else 0.0,
        inputs,
        min(inputs, numbers[_BUDGET]),
        inputs,
    )
    prompt = alone * max(1.0, inputs / numbers[_BUDGET])
    if loads[2] > 0.0:
        whole = concurrency / rate
        first = max(prompt, whole - (outputs - 1.0) * result[_TPOT])
        if loads[4] > 0.0:
            burst = concurrency * inputs / 2.0 * alone / min(inputs, numbers[_BUDGET])
            share = min(1.0, loads[2] / loads[4])
            first = share * max(first, burst) + (1.0 - share) * first
        result[_TTFT] = first
    else:
        over = rate * numbers[_RANKS] < loads[3] * (1.0 - 1e-6)
        result[_TTFT] = np.inf if over else prompt + cycle / 2.0
    result[_E2E] = result[_TTFT] + (outputs - 1.0) * result[_TPOT]


@allocation_free
def _solve_all(stacked: Stack, loads: FloatArray, results: FloatArray) -> None:
    for i in range(stacked.numbers.shape[0]):
        _solve(stacked, i, loads, results[i])
