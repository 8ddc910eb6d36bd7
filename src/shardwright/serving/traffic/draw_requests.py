"""Requests of a job, drawn once from its seed."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.job.serving import (
    ClosedLoop,
    Diurnal,
    Lengths,
    Poisson,
    ServingJob,
    SharedPrefix,
    TokenRange,
    Trace,
)
from shardwright.serving.traffic.drawn_requests import Requests

THINNED: Final = 4096
"""Candidates that are thinned at once."""


def draw(job: ServingJob, *, block_tokens: int, answer_s: float = 0.0) -> Requests:
    """Arrivals, lengths and shared blocks.

    Lengths, arrivals and prefixes have streams of random numbers of their own, so that a change of
    one leaves the others: with the same seed a faster stream is the same one with its gaps
    shortened.

    Args:
        block_tokens: of the engine's cache; a trace with hashes of its own keeps their size, which
            has to be a multiple.
        answer_s: mean seconds of a request, over which a closed loop without a burst spreads its
            first ones.
    """
    of_lengths, of_arrivals, of_prefixes = (
        np.random.Generator(np.random.PCG64(s)) for s in np.random.SeedSequence(job.seed).spawn(3)
    )
    if isinstance(job.arrivals, Trace):
        return _from_trace(job.arrivals, block_tokens=block_tokens)
    if job.lengths is None:
        raise ValueError("lengths are needed where the arrivals are not a trace")
    inputs, outputs = _lengths(job.lengths, job.arrivals.requests, of_lengths)
    if isinstance(job.arrivals, ClosedLoop):
        arrival = _first_ones(job.arrivals, answer_s)
        concurrency = job.arrivals.concurrency
    else:
        arrival, concurrency = _stream(job.arrivals, of_arrivals), 0
    offsets, blocks = _prefixes(job.prefix, inputs, block_tokens, of_prefixes)
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
    """Tokens of the longest prompt and answer together that the job may draw, or that its trace
    has.
    """
    if isinstance(job.arrivals, Trace):
        return int((job.arrivals.inputs + job.arrivals.outputs).max())
    assert job.lengths is not None
    return job.lengths.inputs.high + job.lengths.outputs.high


def _lengths(
    lengths: Lengths, count: int, random: np.random.Generator
) -> tuple[IntArray, IntArray]:
    def of(range: TokenRange) -> IntArray:
        return random.integers(range.low, range.high, size=count, endpoint=True, dtype=np.int64)

    return of(lengths.inputs), of(lengths.outputs)


def _first_ones(loop: ClosedLoop, answer_s: float) -> FloatArray:
    """Of the first `concurrency` requests; the others' are set when they arrive."""
    arrival = np.zeros(loop.requests)
    if not loop.burst:
        first = min(loop.concurrency, loop.requests)
        arrival[:first] = answer_s * np.arange(first) / loop.concurrency
    return arrival


def _stream(arrivals: Poisson | Diurnal, random: np.random.Generator) -> FloatArray:
    """Times of arrival, the first one's at 0."""
    if isinstance(arrivals, Poisson):
        arrival = np.cumsum(random.exponential(size=arrivals.requests)) / arrivals.per_second
    else:
        arrival = _thinned(arrivals, random)
    return np.asarray(arrival - arrival[0] if len(arrival) else arrival, dtype=np.float64)


def _thinned(arrivals: Diurnal, random: np.random.Generator) -> FloatArray:
    """A stream at the highest rate of the day, of which a share stays that is the rate then over
    the highest (Lewis and Shedler 1979).
    """
    highest = arrivals.per_second * (1 + arrivals.swing)
    kept: list[FloatArray] = []
    now, count = 0.0, 0
    while count < arrivals.requests:
        times = now + np.cumsum(random.exponential(1 / highest, size=THINNED))
        rate = arrivals.per_second * (
            1 + arrivals.swing * np.sin(2 * np.pi * times / arrivals.period_s)
        )
        kept.append(times[random.random(THINNED) * highest < rate])
        now, count = float(times[-1]), count + len(kept[-1])
    return np.concatenate(kept)[: arrivals.requests] if kept else np.zeros(0)


def _prefixes(
    prefix: SharedPrefix | None, inputs: IntArray, block_tokens: int, random: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Blocks that lie within a shared text, by the group it is drawn from."""
    if prefix is None:
        return np.zeros(len(inputs) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    groups = random.integers(0, prefix.groups, size=len(inputs), dtype=np.int64)
    each = prefix.tokens // block_tokens
    counts = np.minimum(inputs // block_tokens, each)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    return offsets, np.repeat(groups, counts) * each + place


def _from_trace(trace: Trace, *, block_tokens: int) -> Requests:
    """As it was logged."""
    if trace.blocks and trace.block_tokens % block_tokens == 0:
        counts = np.array([len(row) for row in trace.blocks], dtype=np.int64)
        # A last block that is not full is nobody else's.
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
