"""What every schedule of the registry must do, whatever it is: each action once, on its rank,
executable, told in text without loss."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.schedules.action_order_arrays import KINDS, ActionTable
from shardwright.schedules.action_table_to_csv import format_csv
from shardwright.schedules.action_table_to_plan_entries_and_time_slots import (
    row_entries,
    slots,
    table_of_entries,
)
from shardwright.schedules.chunk_placement import ChunkPlacement, chunk_ranks
from shardwright.schedules.format_action import format_action
from shardwright.schedules.schedule_registry import SCHEDULES, schedule
from shardwright.schedules.table_text_picture import draw
from shardwright.simulator.kernel.event_kernel import simulate
from shardwright.strategy.plan.pipeline_order import actions_of
from tests.registries import place
from tests.schedules.csv_reader import parse_action, parse_csv
from tests.schedules.longest_path import needs_of, run
from tests.schedules.rank_chunks import rank_chunks
from tests.tiers import examples, in_both, many, random_of

NAMES = sorted(SCHEDULES)
LANES = ("down", "up")
SIZES = many(30, 200)
Numbers = tuple[int, int, int, int]


def file_of(name: str) -> str:
    """Source file of a schedule, for messages."""
    module = SCHEDULES.targets[name].split(":")[0]
    return place(f"src/{module.replace('.', '/')}.py")


def table(name: str, numbers: Numbers) -> ActionTable | None:
    """The table of (ranks, chunks, microbatches, slices), or None where the schedule has none."""
    ranks, chunks, microbatches, slices = numbers
    extra = {"slices": slices} if "slices" in getattr(schedule(name), "options", ()) else {}
    try:
        return schedule(name).table(
            num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=microbatches, **extra
        )
    except StrategyError:
        return None


def legal(
    name: str, *, ranks: int, most: int, count: int = 10**9
) -> list[tuple[Numbers, ActionTable]]:
    """All legal tables of up to `ranks` ranks and `most` microbatches; or `count` of them,
    drawn."""
    slices = (1, 3) if "slices" in getattr(schedule(name), "options", ()) else (1,)
    sizes = [
        (p, v, m, s)
        for p in range(1, ranks + 1)
        for v in (1, 2, 3, 4)
        for m in range(1, most + 1)
        for s in slices
    ]
    drawn = sizes if count >= len(sizes) else random_of(name).sample(sizes, len(sizes))
    return list(
        islice(
            ((numbers, found) for numbers in drawn if (found := table(name, numbers)) is not None),
            count,
        )
    )


@in_both
@pytest.mark.parametrize("name", NAMES)
def test_many_sizes_run_and_are_complete(name: str) -> None:
    """No deadlock; each (lane, chunk, microbatch, slice) once a kind, on its rank; the peak is what
    is said."""
    rule = schedule(name)
    wanted = min(SIZES, 100)
    tables = legal(name, ranks=8, most=20, count=SIZES)
    if len(tables) < wanted:  # a schedule that refuses most sizes
        tables = legal(name, ranks=14, most=42, count=SIZES)
    assert len(tables) >= wanted, (
        f"`legal` or `make` of {name} in {file_of(name)} refuses too much: of up to 14 ranks and 42"
        f" microbatches, {len(tables)} sizes have a table, and the test needs {wanted}"
    )
    for (ranks, chunks, microbatches, slices), found in tables:
        assert (found.num_ranks, found.num_chunks, found.num_microbatches) == (
            ranks,
            ranks * chunks,
            microbatches,
        )
        where = (
            f"the table that `make` of {name} in {file_of(name)} gives for {ranks} ranks, {chunks}"
            f" chunks a rank, {microbatches} microbatches and {slices} slices"
        )
        check_complete(found, placement=rule.placement, chunks=chunks, slices=slices, where=where)
        letters = {KINDS[kind] for kind in np.unique(found.kind)}
        assert letters <= set(rule.kinds), f"{where} has actions that `kinds` lacks: {letters}"
        result = run(found, times={"F": 2, "I": 3, "W": 1}, transfer=1, called=where)
        extra = {"slices": slices} if slices > 1 else {}
        peak = rule.peak_in_flight(
            num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=microbatches, **extra
        )
        if peak is not None:
            assert peak.tolist() == result.held, (
                f"`peak` says {peak.tolist()}, but {where} keeps {result.held}: change one of them"
            )


def check_complete(
    found: ActionTable, *, placement: ChunkPlacement, chunks: int, slices: int, where: str
) -> None:
    """Rows hold F and either B or I and W of every place of their rank, and nothing else."""
    owner = chunk_ranks(placement, num_ranks=found.num_ranks, chunks_per_rank=chunks)
    rank = np.repeat(np.arange(found.num_ranks), np.diff(found.row_start))
    assert (owner[found.lane, found.chunk] == rank).all(), (
        f"{where} has chunks on other ranks than `placement` says"
    )
    shape = (5, len(owner), found.num_chunks, found.num_microbatches, slices)
    count = np.zeros(shape, int)
    np.add.at(count, (found.kind, found.lane, found.chunk, found.microbatch, found.slice), 1)
    forward, inputs, weights, whole, recompute = count
    assert (forward == 1).all(), f"{where} needs each F once"
    assert (inputs + whole == 1).all(), f"{where} needs each B, or each I, once"
    assert (inputs == weights).all(), f"{where} needs a W for each I"
    assert not recompute.any(), f"{where} has an R, which plans add by themselves"


@given(
    name=st.sampled_from(NAMES),
    numbers=st.tuples(st.integers(1, 10), st.integers(1, 4), st.integers(1, 40), st.integers(1, 4)),
    times=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9)),
    transfer=st.integers(0, 20),
)
@examples(30, 1000)
def test_any_times_run(
    name: str, numbers: Numbers, times: tuple[int, int, int], transfer: int
) -> None:
    """No rank is done before its work, and none later than everything one after another."""
    found = table(name, numbers)
    assume(found is not None)
    assert found is not None
    result = run(found, times=dict(zip("FIW", times, strict=True)), transfer=transfer)
    hops = (
        2
        * found.num_microbatches
        * found.num_chunks
        * (int(found.lane.max()) + 1)
        * (int(found.slice.max()) + 1)
    )
    assert max(result.work) <= result.makespan <= sum(result.work) + hops * transfer
    assert sum(result.work) == sum(times) * hops // 2


@in_both
@pytest.mark.parametrize("name", NAMES)
def test_text_round_trip(name: str) -> None:
    """Letters, CSV and pictures tell all of a table."""
    tables = legal(name, ranks=4, most=9, count=many(15, 60))
    for _, found in tables:
        lanes = LANES if found.lane.any() else ()
        rows = [row_entries(found, rank=rank) for rank in range(found.num_ranks)]
        assert all(
            parse_action(format_action(entry, lanes=LANES), lanes=LANES) == entry
            for row in rows
            for entry in row
        )
        text = format_csv(found, lanes=lanes)
        back = parse_csv(text, lanes=lanes)
        assert [row_entries(back, rank=rank) for rank in range(back.num_ranks)] == rows
        assert format_csv(table_of_entries(rows), lanes=lanes) == text
        picture = draw(found, width=10**6, lanes=lanes).splitlines()
        assert len(picture) == found.num_ranks
        for line, row in zip(picture, rows, strict=True):
            cells = [cell for cell in line.split()[1:] if cell != "."]
            assert cells == [
                "|".join(format_action(action, lanes=lanes) for action in actions_of(entry))
                for entry in row
            ]


@in_both
@pytest.mark.parametrize("name", NAMES)
def test_slots_are_the_longest_path_in_unit_times(name: str) -> None:
    """Where all kinds take one slot the package's own walk agrees with the independent one."""
    for _, found in legal(name, ranks=5, most=11, count=many(30, 120)):
        if not (Counter(found.kind.tolist()).keys() & {KINDS.index("B")}):
            assert (
                int(slots(found).max()) + 1 == run(found, times={"F": 1, "I": 1, "W": 1}).makespan
            )
        elif not (Counter(found.kind.tolist()).keys() & {KINDS.index("W")}):
            assert (
                int(slots(found).max()) + 1 == run(found, times={"F": 1, "I": 1, "W": 0}).makespan
            )


@in_both
@pytest.mark.parametrize("name", NAMES)
def test_the_event_kernel_runs_every_table(name: str) -> None:
    """The simulator's kernel, told rows and inputs as edges, neither deadlocks nor disagrees with
    the walk by hand."""
    times = {"F": 2, "I": 3, "W": 1}
    for _, found in legal(name, ranks=6, most=14, count=many(25, 150)):
        if found.overlapped is not None:
            continue
        at = {}
        slices = int(found.slice.max()) + 1
        for a in range(found.kind.size):
            letter = KINDS[found.kind[a]]
            where = (
                int(found.lane[a]),
                int(found.chunk[a]),
                int(found.microbatch[a]),
                int(found.slice[a]),
            )
            for part in "IW" if letter == "B" else letter:
                at[part, *where] = a
        edges = {
            (a - 1, a) for a in range(1, found.kind.size) if a not in set(found.row_start.tolist())
        }
        for key, a in at.items():
            needs = (at[need] for need in needs_of(key, chunks=found.num_chunks, slices=slices))
            edges |= {(need, a) for need in needs if need != a}
        pairs = np.array(sorted(edges)).reshape(-1, 2)
        start = np.searchsorted(pairs[:, 0], np.arange(found.kind.size + 1))
        indegree = np.bincount(pairs[:, 1], minlength=found.kind.size)
        work = np.array(
            [(times | {"B": times["I"] + times["W"]})[KINDS[kind]] for kind in found.kind]
        )
        none = np.zeros(0, int)
        _, finish, done = simulate(
            work, indegree, start, pairs[:, 1], np.zeros(found.kind.size + 1, int), none, none, 0
        )
        assert done == found.kind.size
        assert int(finish.max()) == run(found, times=times).makespan


def test_placements_by_hand() -> None:
    assert chunk_ranks(ChunkPlacement.LOOPED, num_ranks=3, chunks_per_rank=2).tolist() == [
        [0, 1, 2, 0, 1, 2]
    ]
    assert chunk_ranks(ChunkPlacement.WAVE, num_ranks=3, chunks_per_rank=2).tolist() == [
        [0, 1, 2, 2, 1, 0]
    ]
    assert chunk_ranks(ChunkPlacement.WAVE, num_ranks=2, chunks_per_rank=4).tolist() == [
        [0, 1, 1, 0, 0, 1, 1, 0]
    ]
    assert chunk_ranks(ChunkPlacement.OPPOSITE, num_ranks=3, chunks_per_rank=1).tolist() == [
        [0, 1, 2],
        [2, 1, 0],
    ]
    assert rank_chunks(ChunkPlacement.WAVE, num_ranks=3, chunks_per_rank=2).tolist() == [
        [[0, 5], [1, 4], [2, 3]]
    ]
    assert rank_chunks(ChunkPlacement.OPPOSITE, num_ranks=2, chunks_per_rank=1).tolist() == [
        [[0], [1]],
        [[1], [0]],
    ]


@pytest.mark.parametrize(
    ("name", "numbers", "words"),
    [
        ("dualpipe", (3, 1, 8), "even number of ranks, not 3 .*hint: dualpipe-v"),
        ("dualpipe", (4, 1, 3), "at least 4 microbatches in each lane, not 3"),
        ("dualpipe-v", (3, 2, 5), "at least 6 microbatches, not 5"),
        ("chimera", (4, 1, 5), "multiple of 2 microbatches in each lane, not 5 .*hint: try 4 or 6"),
        ("chimera", (5, 1, 5), "even number of ranks, not 5"),
        ("hanayo", (4, 3, 8), "even number of chunks a rank"),
        ("zb-v", (4, 1, 8), "zb-v runs 2 chunks on each rank, not 1"),
        ("terapipe", (2, 1, 4, 0), "slices of at least 1"),
    ],
)
def test_sizes_that_have_no_table(name: str, numbers: tuple[int, ...], words: str) -> None:
    ranks, chunks, microbatches, *slices = numbers
    extra = {"slices": slices[0]} if slices else {}
    with pytest.raises(StrategyError, match=words):
        schedule(name).table(
            num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=microbatches, **extra
        )
