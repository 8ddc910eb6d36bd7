"""Steps on a mixed cluster that were published: AMP's trials on three nodes of 4 V100 and one of 4
T4 (arXiv 2210.07297).

Ranks lie in the order of the nodes in every row: each trial ran without a rank map of its own, and
AMP's description of its cluster has the T4 last (`het_cluster.py` of its repository).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from shardwright.validation.training.sweep_and_scaling_checks import spearman
from tests.validation.published import case_of, predicted, rows


@cache
def steps() -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Predicted and measured seconds of every row, and its stages."""
    given = [row for row in rows("heterogeneous.csv") if row.source_id == "amp_het"]
    cases = [case_of(row) for row in given]
    assert {case.measurement.gpu_count for case in cases} == {16}
    foreseen = np.array([predicted(case).step_time_s for case in cases])
    return (
        foreseen,
        np.array([row.measured_iter_time_s for row in given], dtype=float),
        np.array([row.pp for row in given], dtype=int),
    )


def error(rows_of: slice | np.ndarray = slice(None)) -> float:  # type: ignore[type-arg]
    """Mean of |predicted / measured - 1|."""
    foreseen, measured, _ = steps()
    return float(np.abs(foreseen[rows_of] / measured[rows_of] - 1).mean())


def test_what_holds() -> None:
    foreseen, measured, stages = steps()
    assert len(measured) == 23
    assert (stages == 1).sum() == 4
    assert error() < 0.20
    assert np.abs(foreseen / measured - 1).max() < 0.40
    assert spearman(np.stack([foreseen, measured], axis=1))[0] > 0.60


@pytest.mark.xfail(
    strict=True,
    reason=(
        "0.643: small microbatches between nodes take longer than their bytes (0.63 to 0.88), large"
        " ones less"
    ),
)
def test_plans_are_ranked_as_measured() -> None:
    foreseen, measured, _ = steps()
    assert spearman(np.stack([foreseen, measured], axis=1))[0] >= 0.75


@pytest.mark.xfail(
    strict=True,
    reason=(
        "18.9 %: microbatches of 1 and 2 are predicted 24 % too fast in pipelines, those from 4 on"
        " 12 % too slow"
    ),
)
def test_mean_error_of_all_rows() -> None:
    assert error() <= 0.15


def test_mean_error_of_rows_without_pipeline() -> None:
    assert error(steps()[2] == 1) <= 0.10
