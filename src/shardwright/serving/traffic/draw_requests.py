"""Draw a job's requests from its random seed, or take them from its trace."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Diurnal,
    Lengths,
    Poisson,
    ServingJob,
    SharedPrefix,
    TokenRange,
    Trace,
)
from shardwright.serving.traffic.requests_and_outcomes import Requests

CANDIDATES_AT_ONCE: Final = 4096
"""Candidate arrivals that are thinned at once."""


def draw_requests(job: ServingJob, *, block_tokens: int, answer_s: float = 0.0) -> Requests:
    """Draw the arrival times, lengths and shared prefix blocks of a job's requests.

    Lengths, arrivals and prefixes have separate streams of random numbers, so that a change of one
    leaves the others: with the same seed a faster stream is the same stream with shorter gaps.

    Args:
        block_tokens: tokens of a block of the engine's cache; a trace with hashes keeps its own
            block size, which has to be a multiple.
        answer_s: mean seconds of a request, over which a closed loop without a burst spreads its
            first requests.
    """
    length_random, arrival_random, prefix_random = (
        np.random.Generator(np.random.PCG64(s)) for s in np.random.SeedSequence(job.seed).spawn(3)
    )
    if isinstance(job.arrivals, Trace):
        return _trace_requests(job.arrivals, block_tokens=block_tokens)
    if job.lengths is None:
        raise ValueError("lengths are needed where the arrivals are not a trace")
    inputs, outputs = _draw_lengths(job.lengths, job.arrivals.requests, length_random)
    if isinstance(job.arrivals, ClosedLoop):
        arrival = _closed_loop_arrivals(job.arrivals, answer_s)
        concurrency = job.arrivals.concurrency
    else:
        arrival, concurrency = _stream_arrivals(job.arrivals, arrival_random), 0
    offsets, blocks = _prefixes(job.prefix, inputs, block_tokens, prefix_random)
    return Requests(
        arrival_s=arrival,
        inputs=inputs,
        outputs=outputs,
        concurrency=concurrency,
        block_offsets=offsets,
        blocks=blocks,
        block_tokens=block_tokens,
    )


def longest_request(job: ServingJob) -> int:
    """Most tokens of prompt plus answer in a request: the trace's, or the ranges' upper ends."""
    if isinstance(job.arrivals, Trace):
        return int((job.arrivals.inputs + job.arrivals.outputs).max())
    assert job.lengths is not None
    return job.lengths.inputs.high + job.lengths.outputs.high


def _draw_lengths(
    lengths: Lengths, count: int, random: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """(n,) tokens of prompts and (n,) tokens of answers, drawn uniformly from their ranges."""

    def drawn_from(range: TokenRange) -> IntArray:
        """(count,) tokens drawn uniformly from a range."""
        return random.integers(range.low, range.high, size=count, endpoint=True, dtype=np.int64)

    return drawn_from(lengths.inputs), drawn_from(lengths.outputs)


def _closed_loop_arrivals(loop: ClosedLoop, answer_s: float) -> FloatArray:
    """(n,) arrivals in s: the first `concurrency` spread over `answer_s`; later or burst ones 0.

    Later ones are set when they arrive.
    """
    arrival = np.zeros(loop.requests)
    if not loop.burst:
        num_first = min(loop.concurrency, loop.requests)
        arrival[:num_first] = answer_s * np.arange(num_first) / loop.concurrency
    return arrival


def _stream_arrivals(arrivals: Poisson | Diurnal, random: np.random.Generator) -> FloatArray:
    """(n,) arrival times in seconds of an open stream, the first at 0."""
    if isinstance(arrivals, Poisson):
        arrival = np.cumsum(random.exponential(size=arrivals.requests)) / arrivals.per_second
    else:
        arrival = _thinned(arrivals, random)
    return np.asarray(arrival - arrival[0] if len(arrival) else arrival, dtype=np.float64)


def _thinned(arrivals: Diurnal, random: np.random.Generator) -> FloatArray:
    """(n,) arrival times in seconds of a stream whose rate follows the time of day, by thinning.

    Candidates come at the day's highest rate; each is kept with probability rate then / highest
    rate (Lewis and Shedler 1979).
    """
    highest = arrivals.per_second * (1 + arrivals.swing)
    kept_times: list[FloatArray] = []
    time_s, count = 0.0, 0
    while count < arrivals.requests:
        times = time_s + np.cumsum(random.exponential(1 / highest, size=CANDIDATES_AT_ONCE))
        rate = arrivals.per_second * (
            1 + arrivals.swing * np.sin(2 * np.pi * times / arrivals.period_s)
        )
        kept_times.append(times[random.random(CANDIDATES_AT_ONCE) * highest < rate])
        time_s, count = float(times[-1]), count + len(kept_times[-1])
    return np.concatenate(kept_times)[: arrivals.requests] if kept_times else np.zeros(0)


def _prefixes(
    prefix: SharedPrefix | None, inputs: IntArray, block_tokens: int, random: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """(n + 1,) offsets and flat block numbers of each prompt's shared prefix; None = no blocks."""
    if prefix is None:
        return np.zeros(len(inputs) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    groups = random.integers(0, prefix.groups, size=len(inputs), dtype=np.int64)
    blocks_of_text = prefix.tokens // block_tokens
    counts = np.minimum(inputs // block_tokens, blocks_of_text)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    block_index = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    return offsets, np.repeat(groups, counts) * blocks_of_text + block_index


def _trace_requests(trace: Trace, *, block_tokens: int) -> Requests:
    """Requests of a trace from time 0; hashed blocks kept if `block_tokens` divides their size."""
    if trace.blocks and trace.block_tokens % block_tokens == 0:
        counts = np.array([len(row) for row in trace.blocks], dtype=np.int64)
        # A last block that is not full is never shared.
        counts = np.minimum(counts, trace.inputs // trace.block_tokens)
        flat = np.array(
            [
                block
                for row, count in zip(trace.blocks, counts, strict=True)
                for block in row[:count]
            ],
            dtype=np.int64,
        )
        _, blocks = np.unique(flat, return_inverse=True)
        size = trace.block_tokens
    else:
        counts, blocks, size = (
            np.zeros(len(trace.inputs), dtype=np.int64),
            np.zeros(0, dtype=np.int64),
            block_tokens,
        )
    return Requests(
        arrival_s=trace.arrival_s - (trace.arrival_s[0] if len(trace.arrival_s) else 0.0),
        inputs=trace.inputs,
        outputs=trace.outputs,
        concurrency=0,
        block_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        blocks=blocks.astype(np.int64),
        block_tokens=size,
    )
