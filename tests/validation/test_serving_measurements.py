"""Tables of serving: exact values from both forms, errors that name line and column, and no other
errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DataError, ShardwrightError
from shardwright.validation.serving.serving_table_columns import (
    SERVING_TABLE,
    ServingMeasurement,
    is_serving_table,
)
from shardwright.validation.tables.csv_rows import parse_table
from tests.tiers import examples
from tests.validation.published import FOLDER as TRAINING
from tests.validation.serving_tables import FOLDER, HEADER, LINE, published

METRICS = (
    "source,row,model,gpu,gpus,tp,pp,ep,dp,precision,kv_precision,isl,osl,batch_or_concurrency,framework+version,metric"
    " name,value,notes,spec_decoding,workers,degrees,protocol,duplicate_of"
)
PLAIN = (
    "a,7,m,b200_sxm,64,64,1,8,1,fp4,not recorded,1024,1024,128,sglang 0.5.9,{},{},"
    "agg; attn tp64 dp1; moe_tp8 moe_ep8; x,none,,product of tp and ep,InferenceX closed loop,"
)
POOLS = (
    "a,8,m,gb300,22,P1/D4,P1/D1,P2/D4,P2/D1,fp4,,8192,1024,5,trtllm"
    " 0.8.1.post2,tpot_ms,6.07,disagg; prefill workers=1 bs=1 moe_tp1; decode workers=5 bs=1"
    " moe_tp1; y,unknown,,as stated,fixed lengths,3"
)


def _parse(*lines: str, header: str = HEADER) -> tuple[ServingMeasurement, ...]:
    return parse_table("\n".join([header, *lines]).encode(), form=SERVING_TABLE, source="t.csv")


def test_values_are_read_by_the_header() -> None:
    (row,) = _parse(LINE)
    assert (row.line, row.model_name, row.gpu_count, row.engine, row.tp, row.dpa) == (
        2,
        "llama-3.3-70b",
        4,
        "vLLM 0.12.0",
        4,
        None,
    )
    assert (row.isl, row.osl, row.concurrency, row.tpot_ms, row.ttft_ms) == (
        1024,
        512,
        64,
        17.5,
        300.0,
    )


def test_metrics_of_a_configuration_are_joined() -> None:
    one, other = _parse(
        PLAIN.format("tpot_ms", "9.5"), POOLS, PLAIN.format("ttft_ms", "203.7"), header=METRICS
    )
    assert (one.line, one.tpot_ms, one.ttft_ms, one.output_tokens_per_s) == (2, 9.5, 203.7, None)
    assert (one.tp, one.dpa, one.ep, one.degrees, one.protocol, one.workers) == (
        64,
        1,
        8,
        "product of tp and ep",
        "inferencex",
        "",
    )
    assert (other.tp, other.workers, other.gpu_count, other.duplicate_of) == (
        None,
        "1x(tp2ep2dp)+5x(tp4ep4)",
        22,
        "3",
    )


def test_throughput_of_a_device_is_that_of_all() -> None:
    (row,) = _parse(
        PLAIN.format("output_tokens_per_s_per_gpu", "100").replace(",64,64,1,8", ",8,8,1,1"),
        header=METRICS,
    )
    assert row.output_tokens_per_s == 800.0


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        ((LINE,), HEADER.replace("engine", "engin"), "line 1: no column engine"),
        ((LINE.replace("1024", "1k"),), HEADER, "line 2, column isl: '1k' is not a whole number"),
        ((f"{LINE},1",), HEADER, "line 2: 16 cells for 15 columns"),
        (
            (PLAIN,),
            METRICS.replace("framework+version", "framework"),
            "line 1: no column framework+version",
        ),
        ((PLAIN.format("tpot_ms", "fast"),), METRICS, "line 2, column tpot_ms: 'fast'"),
        ((POOLS + ",,,",), METRICS, "line 2: 26 cells for 23 columns"),
    ],
)
def test_malformed_tables_name_the_place(lines: tuple[str, ...], header: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        _parse(*lines, header=header)
    assert message in str(caught.value)


def test_kinds_of_tables_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for header, expected in (
        (HEADER, True),
        (METRICS, True),
        ("source_id,table_or_row,tpot_ms", True),
        ("source_id,gpu", False),
    ):
        path.write_text(f"{header}\n")
        assert is_serving_table(path) is expected
    assert is_serving_table(FOLDER / "runs.csv")
    assert not any(is_serving_table(table) for table in TRAINING.glob("*.csv"))


@examples(50, 500)
@given(st.binary(max_size=400))
def test_any_bytes_are_rows_or_an_error_of_ours(content: bytes) -> None:
    _any(content)


@examples(50, 500)
@given(
    st.lists(st.lists(st.text(max_size=12), max_size=10), max_size=5),
    st.sampled_from([HEADER, METRICS]),
)
def test_any_cells_under_a_good_header_are_rows_or_an_error_of_ours(
    lines: list[list[str]], header: str
) -> None:
    _any(
        "\n".join([header, *(",".join(cells) for cells in lines)]).encode(
            "utf-8", errors="surrogatepass"
        )
    )


def _any(content: bytes) -> None:
    try:
        parse_table(content, form=SERVING_TABLE, source="fuzz")
    except ShardwrightError as error:
        message = str(error)
    else:
        return
    assert len(message.splitlines()) == 1


def test_the_projects_own_rows_keep_their_source_and_repeat_nothing() -> None:
    rows = published()
    assert len(rows) == 1929
    assert all(row.source and row.table_or_row and not row.duplicate_of for row in rows)
    assert len({(row.source, row.table_or_row) for row in rows}) == len(rows)
    assert (FOLDER / "runs.csv").stat().st_size < 500_000
