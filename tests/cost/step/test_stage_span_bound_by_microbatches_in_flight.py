"""Round trips one after another against the longest path through 1F1B: never above it, and the
tightest of the stage bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.longest_path import rank_end_picoseconds
from shardwright.cost.step.stage_span_bound_by_microbatches_in_flight import round_trips
from shardwright.kernel_compilation import python_form
from shardwright.schedules.schedule_registry import schedule_table
from tests.tiers import in_both, many, random_of

trips = python_form(round_trips)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline of one chunk a rank in 1F1B, in picoseconds. out, back: (ranks - 1,) sends over
    the border behind each rank."""

    microbatches: int
    forward: IntArray
    backward: IntArray
    out: IntArray
    back: IntArray
    blocking: bool


def drawn(generator: Random) -> Pipeline:
    """Unequal stages, one of them much heavier at times; sends that take nothing, little, or as
    long as a stage."""
    p, m = generator.randint(1, 8), generator.randint(1, 24)
    spread = generator.choice((0.01, 0.2, 1.0))

    def times(count: int, least: float, most: float) -> IntArray:
        return np.array(
            [round(1e6 * generator.uniform(least, most)) for _ in range(count)], dtype=np.int64
        )

    forward, backward = times(p, 1, 1 + spread), times(p, 2, 2 + 2 * spread)
    if generator.random() < 0.5:
        heavy = generator.randrange(p)
        forward[heavy] *= 2
        backward[heavy] *= 2
    send = generator.choice((0.0, 0.1, 2.0))
    borders = times(p - 1, 0, send), times(p - 1, 0, send)
    return Pipeline(
        microbatches=m,
        forward=forward,
        backward=backward,
        out=borders[0],
        back=borders[1],
        blocking=generator.random() < 0.5,
    )


def path_of(pipeline: Pipeline) -> int:
    """The longest path."""
    p, m = len(pipeline.forward), pipeline.microbatches
    table = schedule_table("1f1b", num_ranks=p, chunks_per_rank=1, num_microbatches=m)
    none, durations = np.zeros(p, dtype=np.int64), np.zeros((5, p), dtype=np.int64)
    durations[0], durations[3] = pipeline.forward, pipeline.backward
    rows = table.row_start, table.kind, table.chunk, table.microbatch, m
    sends = np.append(pipeline.out, 0), np.append(0, pipeline.back)
    ends = rank_end_picoseconds(
        *rows,
        durations,
        *sends,
        none,
        none,
        none,
        none + 1,
        pipeline.blocking,
        False,
        0.0,
        np.zeros((2, p)),
    )
    return int(ends.max())


def stage_bounds(pipeline: Pipeline, *, fewer: int = 0) -> tuple[float, float]:
    """The largest bound of any stage by its work and by what is left from its first backward on;
    and by round trips with `fewer` microbatches in flight.
    """
    forward, backward, m = pipeline.forward, pipeline.backward, pipeline.microbatches
    p, way = len(forward), (forward + backward).sum() + (pipeline.out + pipeline.back).sum()
    plainly, round_and_round = 0.0, 0.0
    for i in range(p):
        around = (forward[:i] + backward[:i]).sum() + (pipeline.out[:i] + pipeline.back[:i]).sum()
        held_forward = int(pipeline.out[i]) if pipeline.blocking and i < p - 1 else 0
        held_backward = int(pipeline.back[i - 1]) if pipeline.blocking and i > 0 else 0
        q, work, held = min(p - i, m), int(forward[i] + backward[i]), held_forward + held_backward
        first = around + m * work + (m - 1) * held
        second = (
            way + (m - 1) * (backward[i] + held_backward) + (m - q) * (forward[i] + held_forward)
        )
        plainly = max(plainly, first, second)
        third = trips(float(way - around), held_backward, work + held, m, max(q - fewer, 1))
        round_and_round = max(round_and_round, around + third if third else 0.0)
    return plainly, round_and_round


@in_both
def test_round_trips_are_never_above_the_longest_path(
    record_property: Callable[[str, object], None],
) -> None:
    generator, before, after = random_of("round trips"), [], []
    for _ in range(many(300, 3000)):
        pipeline = drawn(generator)
        path = path_of(pipeline)
        plainly, round_and_round = stage_bounds(pipeline)
        assert max(plainly, round_and_round) <= path, pipeline
        before.append(plainly / path)
        after.append(max(plainly, round_and_round) / path)
    for name, ratios in (("work and drain", before), ("with round trips", after)):
        record_property(
            f"{name}: mean, fifth percentile and share of exact",
            (float(np.mean(ratios)), float(np.quantile(ratios, 0.05)), _exact(ratios)),
        )
    # As in references: the mean gap to the path falls to a fifth or less.
    assert 1 - np.mean(after) < (1 - np.mean(before)) / 3
    assert _exact(after) > _exact(before) > 0


def _exact(ratios: list[float]) -> float:
    return float(np.mean(np.array(ratios) > 1 - 1e-12))


def test_with_one_microbatch_less_in_flight_it_would_be_false() -> None:
    """The number in flight is the largest that holds."""
    generator = random_of("one less")
    broken = 0
    for _ in range(100):
        pipeline = drawn(generator)
        broken += stage_bounds(pipeline, fewer=1)[1] > path_of(pipeline)
    assert broken > 10


def test_every_number_of_trips_is_within_the_two() -> None:
    generator = random_of("linear")
    for _ in range(many(200)):
        trip, apart, each = (
            generator.choice((0.0, 1.0)) * generator.uniform(0, 10) for _ in range(3)
        )
        m, q = generator.randint(1, 40), generator.randint(1, 12)
        all_of_them = [
            a * trip + (a - 1) * apart + (m - 1 - (a - 1) * q) * each
            for a in range(2, m + 1)
            if (a - 1) * q < m
        ]
        assert np.isclose(
            trips(trip, apart, each, m, q), max(all_of_them, default=0.0), rtol=1e-12, atol=0
        )


def test_twice_the_seconds_are_twice_the_bound() -> None:
    assert trips(6.0, 1.0, 3.0, 9, 4) == 2 * trips(3.0, 0.5, 1.5, 9, 4) > 0
