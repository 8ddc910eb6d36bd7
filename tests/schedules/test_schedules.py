"""Tables of the named schedules: complete, executable, and as long and as full as the papers
say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.schedules.action_order_arrays import ActionTable, B, F
from shardwright.schedules.action_table_to_plan_entries_and_time_slots import slots
from shardwright.schedules.schedule_registry import SCHEDULES, schedule, schedule_table
from tests.registries import place
from tests.tiers import examples

LISTED = place("src/shardwright/schedules/schedule_registry.py", "SCHEDULES")
MANY = examples(60, 750)


def makespan(table: ActionTable, *, forward: int, backward: int) -> int:
    """Ends of all rows when each rank runs its row in order and transfers take no time; fails on
    deadlock."""
    end: dict[tuple[int, int, int], int] = {}
    clock, place = [0] * table.num_ranks, table.row_start[:-1].tolist()
    moving = True
    while moving:
        moving = False
        for rank in range(table.num_ranks):
            while place[rank] < table.row_start[rank + 1]:
                at = place[rank]
                kind, chunk, microbatch = (
                    int(table.kind[at]),
                    int(table.chunk[at]),
                    int(table.microbatch[at]),
                )
                if kind == F:
                    needs = [(F, chunk - 1, microbatch)] if chunk else []
                else:
                    needs = [(F, chunk, microbatch)] + (
                        [(B, chunk + 1, microbatch)] if chunk + 1 < table.num_chunks else []
                    )
                if any(need not in end for need in needs):
                    break
                clock[rank] = max([clock[rank], *(end[need] for need in needs)]) + (
                    forward if kind == F else backward
                )
                end[kind, chunk, microbatch] = clock[rank]
                place[rank] += 1
                moving = True
    assert place == table.row_start[1:].tolist(), "deadlock"
    return max(clock)


def check_complete(table: ActionTable, *, ranks: int, chunks: int, microbatches: int) -> None:
    """Each rank has exactly one forward and one backward of each of its chunks on each
    microbatch."""
    assert (table.num_ranks, table.num_chunks, table.num_microbatches) == (
        ranks,
        ranks * chunks,
        microbatches,
    )
    for rank in range(ranks):
        row = slice(table.row_start[rank], table.row_start[rank + 1])
        have = sorted(
            zip(
                table.kind[row].tolist(),
                table.chunk[row].tolist(),
                table.microbatch[row].tolist(),
                strict=True,
            )
        )
        assert have == sorted(
            (k, c * ranks + rank, m)
            for k in (F, B)
            for c in range(chunks)
            for m in range(microbatches)
        )


def peaks(table: ActionTable) -> list[int]:
    """Most forwards without their backward, by rank."""
    steps = np.where(table.kind == F, 1, -1)
    return [
        int(np.cumsum(steps[table.row_start[r] : table.row_start[r + 1]]).max())
        for r in range(table.num_ranks)
    ]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@given(
    ranks=st.integers(1, 9),
    microbatches=st.integers(1, 20),
    forward=st.integers(1, 9),
    backward=st.integers(1, 9),
)
@MANY
def test_one_chunk_a_rank(
    name: str, ranks: int, microbatches: int, forward: int, backward: int
) -> None:
    """Bubble (p - 1)(F + B) for any F, B and m; peak m, or min(p - r, m)."""
    table = schedule_table(name, num_ranks=ranks, chunks_per_rank=1, num_microbatches=microbatches)
    check_complete(table, ranks=ranks, chunks=1, microbatches=microbatches)
    assert makespan(table, forward=forward, backward=backward) == (microbatches + ranks - 1) * (
        forward + backward
    )
    expected = [
        microbatches if name == "gpipe" else min(ranks - rank, microbatches)
        for rank in range(ranks)
    ]
    assert peaks(table) == expected
    known = schedule(name).peak_in_flight(
        num_ranks=ranks, chunks_per_rank=1, num_microbatches=microbatches
    )
    assert known is not None
    assert known.tolist() == expected


@given(
    ranks=st.integers(1, 6),
    chunks=st.integers(1, 5),
    rounds=st.integers(1, 5),
    forward=st.integers(1, 9),
    backward=st.integers(1, 9),
)
@MANY
def test_interleaved(ranks: int, chunks: int, rounds: int, forward: int, backward: int) -> None:
    """Bubble (p - 1)/v (F + B) of a rank's share, here (p - 1)(f + b) of a chunk; peak 2 (p - r -
    1) + (v - 1) p + 1 chunks."""
    microbatches = rounds * ranks
    table = schedule_table(
        "interleaved-1f1b", num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=microbatches
    )
    check_complete(table, ranks=ranks, chunks=chunks, microbatches=microbatches)
    assert makespan(table, forward=forward, backward=backward) == (
        microbatches * chunks + ranks - 1
    ) * (forward + backward)
    expected = [
        min(2 * (ranks - r - 1) + (chunks - 1) * ranks + 1, microbatches * chunks)
        for r in range(ranks)
    ]
    assert peaks(table) == expected
    known = schedule("interleaved-1f1b").peak_in_flight(
        num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=microbatches
    )
    assert known is not None
    assert known.tolist() == expected


@given(
    ranks=st.integers(1, 5),
    chunks=st.integers(1, 4),
    wider=st.integers(0, 4),
    rounds=st.integers(1, 3),
)
@MANY
def test_interleaved_in_larger_groups(ranks: int, chunks: int, wider: int, rounds: int) -> None:
    """A larger group keeps more chunks, never waits longer, and still runs."""
    group = ranks + wider
    table = schedule_table(
        "interleaved-1f1b",
        num_ranks=ranks,
        chunks_per_rank=chunks,
        num_microbatches=rounds * group,
        group=group,
    )
    check_complete(table, ranks=ranks, chunks=chunks, microbatches=rounds * group)
    assert makespan(table, forward=1, backward=2) == (rounds * group * chunks + ranks - 1) * 3
    assert peaks(table)[-1] == min((chunks - 1) * group + 1, rounds * group * chunks)


def test_interleaved_with_one_chunk_is_still_a_schedule_of_its_own() -> None:
    """It warms up twice as deep as 1F1B, as Megatron's rule says."""
    table = schedule_table("interleaved-1f1b", num_ranks=4, chunks_per_rank=1, num_microbatches=8)
    assert peaks(table) == [7, 5, 3, 1]


def test_rows_of_1f1b_by_hand() -> None:
    """Rank 1 of 3 on 4 microbatches: one forward to warm up, then in turn, then one backward."""
    table = schedule_table("1f1b", num_ranks=3, chunks_per_rank=1, num_microbatches=4)
    row = slice(table.row_start[1], table.row_start[2])
    assert table.kind[row].tolist() == [F, F, B, F, B, F, B, B]
    assert table.microbatch[row].tolist() == [0, 1, 0, 2, 1, 3, 2, 3]
    assert set(table.chunk[row].tolist()) == {1}


def test_a_large_table() -> None:
    table = schedule_table(
        "interleaved-1f1b", num_ranks=16, chunks_per_rank=4, num_microbatches=256
    )
    assert table.kind.size == 2 * 16 * 4 * 256
    assert makespan(table, forward=1, backward=2) == (256 * 4 + 15) * 3


def test_tables_are_cached_and_read_only() -> None:
    first = schedule_table("1f1b", num_ranks=4, chunks_per_rank=1, num_microbatches=8)
    assert schedule_table("1f1b", num_ranks=4, chunks_per_rank=1, num_microbatches=8) is first
    with pytest.raises(ValueError, match="read-only"):
        first.chunk[0] = 3
    assert {first: 1}[first] == 1


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_registry_names_are_the_schedules_own(name: str) -> None:
    own = schedule(name).name
    assert own == name, f"`name` of {SCHEDULES.targets[name]} is {own}, and {LISTED} says {name}"


@pytest.mark.parametrize(
    ("name", "counts", "words"),
    [
        ("1f1p", (2, 1, 4), "unknown schedule '1f1p' .* .hint: did you mean 1f1b"),
        ("1f1b", (2, 2, 4), "one chunk on each rank, not 2 .* .hint: use interleaved-1f1b"),
        ("gpipe", (0, 1, 4), "num_ranks of at least 1, not 0"),
        (
            "interleaved-1f1b",
            (4, 2, 6),
            "a multiple of 4 microbatches, not 6 .* .hint: try 4 or 8 microbatches",
        ),
        (
            "interleaved-1f1b",
            (4, 2, 2),
            "a multiple of 4 microbatches, not 2 .* .hint: try 4 microbatches",
        ),
        ("interleaved-1f1b", (2**10, 2**10, 2**20), "actions; the limit is"),
    ],
)
def test_impossible_tables(name: str, counts: tuple[int, int, int], words: str) -> None:
    ranks, chunks, microbatches = counts
    with pytest.raises(StrategyError, match=words):
        schedule_table(name, num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=microbatches)


def test_impossible_parameters() -> None:
    with pytest.raises(StrategyError, match="1f1b has no parameter depth"):
        schedule_table("1f1b", num_ranks=2, chunks_per_rank=1, num_microbatches=4, depth=3)
    with pytest.raises(StrategyError, match="interleaved-1f1b has no parameter depth"):
        schedule_table(
            "interleaved-1f1b", num_ranks=2, chunks_per_rank=2, num_microbatches=4, depth=3
        )
    with pytest.raises(StrategyError, match="group of at least 4"):
        schedule_table(
            "interleaved-1f1b", num_ranks=4, chunks_per_rank=2, num_microbatches=4, group=2
        )


@given(ranks=st.integers(1, 5), chunks=st.integers(1, 4), rounds=st.integers(1, 3))
@MANY
def test_slots_are_unit_times(ranks: int, chunks: int, rounds: int) -> None:
    table = schedule_table(
        "interleaved-1f1b", num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=rounds * ranks
    )
    assert slots(table).max() + 1 == makespan(table, forward=1, backward=1)
