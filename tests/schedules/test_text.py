"""Action letters, CSV tables and pictures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DataError, StrategyError
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.action_table_to_csv import format_csv
from shardwright.schedules.action_table_to_plan_entries_and_time_slots import (
    row_entries,
    slots,
    table_of_entries,
)
from shardwright.schedules.format_action import format_action
from shardwright.schedules.schedule_registry import schedule_table
from shardwright.schedules.table_text_picture import draw
from shardwright.strategy.plan.pipeline_order import Action, Entry, Kind, actions_of
from tests.schedules.csv_reader import parse_action, parse_csv
from tests.tiers import examples

CALM = examples(40, 500)

INTERLEAVED_2_2_4 = """\
0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3,0B2,0B3
,1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3
"""

ZERO_BUBBLE_WITH_A_PAIR = """\
0F0,0F1,0I0,0W0,0B1
1F0,(1F1;1I0)OVERLAP_F_B,1W0,1B1
"""

actions = st.builds(
    Action,
    chunk=st.integers(0, 9_999_999),
    kind=st.sampled_from(Kind),
    microbatch=st.integers(0, 9_999_999),
    lane=st.integers(0, 1),
    slice=st.integers(0, 9_999_999),
)


def rows_of(table: ActionTable) -> list[tuple[Entry, ...]]:
    return [row_entries(table, rank=rank) for rank in range(table.num_ranks)]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("2F0", "F"),
        ("0I12", "I"),
        ("3W1", "W"),
        ("17B255", "B"),
        ("1R4", "R"),
        ("(0F1;1B0)OVERLAP_F_B", "FB"),
    ],
)
def test_letters_of_pytorch(text: str, kinds: str) -> None:
    entry = parse_action(text)
    assert "".join(action.kind for action in actions_of(entry)) == kinds
    assert format_action(entry) == text


def test_which_number_is_which() -> None:
    assert parse_action(" 2F7 ") == Action(chunk=2, kind=Kind.F, microbatch=7)
    assert parse_action("up/3B0.5", lanes=("down", "up")) == Action(
        chunk=3, kind=Kind.B, microbatch=0, lane=1, slice=5
    )


@given(actions | st.tuples(actions, actions))
@CALM
def test_letters_round_trip(entry: Entry) -> None:
    lanes = ("down", "up-2")
    assert parse_action(format_action(entry, lanes=lanes), lanes=lanes) == entry


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("F0", "'F0' is not an action .hint: write chunk"),
        ("2X0", "'2X0' is not an action"),
        ("0SEND_F1", "communication is not written into a compute-only table"),
        ("(0F1;1B0;2B0)OVERLAP_F_B", "a pair has two actions, .* has 3"),
        ("up/2F0", "unknown lane 'up'"),
        ("٢F0", "is not an action"),
        ("2F" + "9" * 400, "is not an action"),
    ],
)
def test_what_is_no_action(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        parse_action(text)


@given(st.text(max_size=30) | st.text(alphabet="0123456789FIWBR;()/.OVERLAP_F_B ", max_size=30))
@CALM
def test_any_text_is_an_action_or_a_data_error(text: str) -> None:
    try:
        entry = parse_action(text)
    except DataError:
        return
    assert parse_action(format_action(entry)) == entry


def test_golden_csv() -> None:
    table = schedule_table("interleaved-1f1b", num_ranks=2, chunks_per_rank=2, num_microbatches=4)
    assert format_csv(table) == INTERLEAVED_2_2_4
    assert rows_of(parse_csv(INTERLEAVED_2_2_4)) == rows_of(table)


def test_idle_cells_are_for_the_eye() -> None:
    """The placement of idle cells in a table dumped by PyTorch 2.13 differs from ours; the order
    does not."""
    dumped = "0F0,0F1,2F0,2F1,,,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3,,0B2,,0B3\r\n"
    dumped += ",1F0,1F1,,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,,1B2,,1B3\r\n"
    assert rows_of(parse_csv(dumped)) == rows_of(parse_csv(INTERLEAVED_2_2_4))


def test_pairs_and_split_backwards_round_trip() -> None:
    table = parse_csv(ZERO_BUBBLE_WITH_A_PAIR)
    assert format_csv(table) == ZERO_BUBBLE_WITH_A_PAIR.replace("1F0", ",1F0", 1).replace(
        "0F1,0I0", "0F1,,0I0"
    )
    assert table.overlapped is not None
    assert table.overlapped.sum() == 1
    place = slots(table)
    assert place[table.row_start[1] + 1] == place[table.row_start[1] + 2] == 2


@given(
    name=st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b"]),
    ranks=st.integers(1, 4),
    chunks=st.integers(1, 3),
    rounds=st.integers(1, 3),
)
@CALM
def test_csv_round_trip(name: str, ranks: int, chunks: int, rounds: int) -> None:
    chunks = chunks if name == "interleaved-1f1b" else 1
    table = schedule_table(
        name, num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=rounds * ranks
    )
    back = parse_csv(format_csv(table))
    assert rows_of(back) == rows_of(table)
    assert (back.num_chunks, back.num_microbatches) == (table.num_chunks, table.num_microbatches)
    assert np.array_equal(back.row_start, table.row_start)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the table is empty"),
        (" \n\n", "the table is empty"),
        ("0F0,0B0\n\n1F0,1B0", "row 1 has no action"),
        ("0F0,huh\n", "row 0, column 1: 'huh' is not an action"),
        ("0F0,0B0,0F0", "0F0 is there twice, again in row 0"),
        ("0F0,0B0\n0F0,0B0", "0F0 is there twice, again in row 1"),
        ("0F0,0B0,0W0", "0W0 is there beside the full backward"),
        ("0F0,0B1", "0F1 is missing .hint: the table speaks of 1 chunks and 2 microbatches"),
        ("0F9999999", "0F0 is missing"),
        ("0F0.1,0B0.1", "0F0 is missing"),
        ("0F0,0F0.1,0B0,0B0.1", "deadlock: rank 0 waits for ever at 0B0"),
        ("0B0,0F0", "deadlock: rank 0 waits for ever at 0B0"),
        ("0F0,0B0\n1B0,1F0", "deadlock: rank [01] waits for ever"),
        ("0F0,0W0,0I0", "deadlock: rank 0 waits for ever at 0W0"),
    ],
)
def test_what_is_no_table(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        parse_csv(text)


cells = st.sampled_from(
    [
        "",
        "0F0",
        "0B0",
        "1F0",
        "1B0",
        "0F1",
        "0B1",
        "1F1",
        "1B1",
        "0I0",
        "0W0",
        "(0F1;0B0)OVERLAP_F_B",
        "0F0.1",
        "0R0",
    ]
)


@given(
    st.text()
    | st.lists(st.lists(cells, max_size=8), max_size=3).map(
        lambda rows: "\n".join(",".join(row) for row in rows)
    )
    | st.permutations(["0F0", "0B0", "0F1", "0B1"]).map(",".join)
)
@CALM
def test_any_text_is_a_table_or_a_data_error(text: str) -> None:
    try:
        table = parse_csv(text)
    except DataError:
        return
    assert slots(table).min() >= 0


def test_what_a_csv_cannot_say() -> None:
    forward = Action(chunk=0, kind=Kind.F, microbatch=0)
    with pytest.raises(StrategyError, match="2 lanes needs their names"):
        format_csv(
            table_of_entries([[forward, Action(chunk=0, kind=Kind.F, microbatch=0, lane=1)]])
        )
    with pytest.raises(StrategyError, match="no recompute"):
        format_csv(table_of_entries([[forward, Action(chunk=0, kind=Kind.R, microbatch=0)]]))


def test_picture() -> None:
    table = schedule_table("1f1b", num_ranks=2, chunks_per_rank=1, num_microbatches=3)
    assert draw(table) == "0  0F0 0F1 .   0B0 0F2 0B1 .   0B2\n1  .   1F0 1B0 1F1 1B1 1F2 1B2\n"
    assert draw(table, width=12) == "0  0F0 0F1 >\n1  .   1F0 >\n"
