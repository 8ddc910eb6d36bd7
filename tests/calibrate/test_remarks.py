"""Every row that is far off has a sentence that says why, and every sentence is about rows of the copy."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from shardwright.calibrate.case import Case
from shardwright.calibrate.measurements import read_measurements
from shardwright.calibrate.predict import predict_case
from shardwright.calibrate.remarks import REMARKS, Remark, remark_of
from shardwright.calibrate.rows import to_case
from shardwright.calibrate.validate import validate

ROWS = Path(__file__).parent.parent / "measurements"
FAR = 0.15


@cache
def _cases() -> tuple[Case, ...]:
    found = [to_case(row) for name in ("training.csv", "megatron_ci.csv") for row in read_measurements(ROWS / name)]
    return tuple(case for case in found if isinstance(case, Case))


def test_rows_far_off_have_a_sentence() -> None:
    judged = validate(_cases(), predict=predict_case).rows
    far = [row for row in judged if max(abs(row.error or 0.0), abs(row.memory_error or 0.0)) > FAR]
    assert far
    assert [f"{r.case.measurement.source_id} {r.case.measurement.table_or_row}" for r in far if not remark_of(r.case)] == []


@pytest.mark.parametrize("remark", REMARKS, ids=lambda r: f"{r.source_id}-{REMARKS.index(r)}")
def test_a_remark_is_about_some_row(remark: Remark) -> None:
    assert any(remark_of(case) == remark.sentence for case in _cases() if case.measurement.source_id == remark.source_id)
