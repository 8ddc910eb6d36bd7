"""Every row that is far off has a sentence that says why, and every sentence is about rows of the copy."""

from __future__ import annotations

from functools import cache, partial

import pytest

from shardwright.validation.accuracy_tables import remark_of
from shardwright.validation.case import Case
from shardwright.validation.facts import Remark
from shardwright.validation.judge import judge
from tests.validation.published import case_of, facts, predicted, rows

FAR = 0.15
REMARKS = facts().remarks


@cache
def _cases() -> tuple[Case, ...]:
    return tuple(case_of(row) for row in rows("training.csv", "heterogeneous.csv", "megatron_ci.csv"))


def test_rows_far_off_have_a_sentence() -> None:
    judged = judge(_cases(), predict=partial(predicted, fold="model"), fold="model").rows
    far = [row for row in judged if max(abs(row.error or 0.0), abs(row.memory_error or 0.0)) > FAR]
    assert far
    assert [
        f"{r.case.measurement.source_id} {r.case.measurement.table_or_row}" for r in far if not remark_of(r.case, remarks=REMARKS)
    ] == []


@pytest.mark.parametrize("remark", REMARKS, ids=lambda r: f"{REMARKS.index(r)}")
def test_a_remark_is_about_some_row(remark: Remark) -> None:
    assert any(remark_of(case, remarks=REMARKS) == remark.sentence for case in _cases())
