"""Reading tables of measurements: exact values, errors that name line and column, and no other
errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DataError, ShardwrightError
from shardwright.validation.tables.csv_rows import parse_table, read_table
from shardwright.validation.training.training_table_columns import (
    TRAINING_TABLE,
    TrainingMeasurement,
)
from tests.tiers import examples
from tests.validation.published import FOLDER

HEADER = "source_id,table_or_row,model_name,gpu,gpu_count,layers,measured_iter_time_s,notes"


def _table(*lines: str) -> bytes:
    return "\n".join([HEADER, *lines]).encode()


def test_values_are_read_by_the_header() -> None:
    (row,) = parse_table(
        _table('lab,"Table 1, row 2",GPT-1B,A100-80GB,8,24,1.5,"a; b"'),
        form=TRAINING_TABLE,
        source="t.csv",
    )
    assert (row.line, row.source_id, row.table_or_row, row.gpu_count, row.layers) == (
        2,
        "lab",
        "Table 1, row 2",
        8,
        24,
    )
    assert row.measured_iter_time_s == 1.5
    assert row.seq_len is None
    assert row.notes == "a; b"


def test_columns_in_any_order_unknown_columns_and_empty_lines() -> None:
    content = (
        b"\xef\xbb\xbfgpu,colour,gpu_count,source_id,model_name,table_or_row\n"
        b"T4,red,4,lab,m,r\n\nT4,,,lab,m,r2\n"
    )
    rows = parse_table(content, form=TRAINING_TABLE, source="t.csv")
    assert [(r.gpu, r.gpu_count, r.line) for r in rows] == [("T4", 4, 2), ("T4", None, 4)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: no column source_id"),
        (b"\xff\xfe", "not UTF-8"),
        (b"source_id,table_or_row,model_nam,gpu,gpu_count\n", "did you mean model_nam?"),
        (HEADER.encode() + b",gpu\n", "column gpu appears twice"),
        (
            _table("lab,r,m,A100,eight,1,1,"),
            "line 2, column gpu_count: 'eight' is not a whole number",
        ),
        (
            _table("lab,r,m,A100,8,1,1,", "lab,r,m,A100,8,1,fast,"),
            "line 3, column measured_iter_time_s: 'fast' is not a number",
        ),
        (_table("lab,r,m,A100,8,1,inf,"), "not a finite number"),
        (_table("lab,r,m,A100,8,-1,1,"), "column layers: '-1'"),
        (_table("lab,r,m,A100,8,9999999999999999,1,"), "too large"),
        (_table("lab,r,m,A100,8,1,1,,surplus"), "line 2: 9 cells for 8 columns"),
        (_table(",r,m,A100,8,1,1,"), "column source_id: empty"),
        (_table('lab,"r"x,m,A100,8,1,1,'), "line 2"),
        (_table('lab,"r'), "line 2"),
    ],
)
def test_malformed_tables_name_the_place(content: bytes, message: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_table(content, form=TRAINING_TABLE, source="t.csv")
    assert message in str(caught.value)
    assert str(caught.value).startswith("t.csv")
    assert caught.value.exit_code == 7


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path, "nul\0"):
        with pytest.raises(DataError):
            read_table(path, form=TRAINING_TABLE)


@examples(50, 500)
@given(st.binary(max_size=400))
def test_any_bytes_are_rows_or_an_error_of_ours(content: bytes) -> None:
    _parse(content)


@examples(50, 500)
@given(
    st.lists(st.lists(st.text(max_size=12), max_size=10), max_size=5),
    st.sampled_from([",", '"', "\n", ",,"]),
)
def test_any_cells_under_a_good_header_are_rows_or_an_error_of_ours(
    lines: list[list[str]], joint: str
) -> None:
    text = "\n".join([HEADER, *(joint.join(cells) for cells in lines)])
    _parse(text.encode("utf-8", errors="surrogatepass"))


def _parse(content: bytes) -> tuple[TrainingMeasurement, ...]:
    try:
        return parse_table(content, form=TRAINING_TABLE, source="fuzz")
    except ShardwrightError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    return ()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.csv")), ids=lambda p: p.name)
def test_the_projects_own_rows_keep_their_source(path: Path) -> None:
    rows = read_table(path, form=TRAINING_TABLE)
    assert rows
    assert all(row.source and row.table_or_row for row in rows)
    assert set(TRAINING_TABLE.required) <= set(TrainingMeasurement.__dataclass_fields__)
