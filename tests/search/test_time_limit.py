"""A search that is stopped says what is proven: the true best lies between its bound and its
answer."""

import math

import pytest

from shardwright.errors import InfeasibleError
from shardwright.search.grid.find_best_grid import find
from shardwright.search.search_answer import Answer
from tests.search.problems import Case, small_case
from tests.tiers import in_both, numbers

CAPACITY = 10**15


def answered(case: Case, *, time_limit_s: float) -> Answer | None:
    try:
        return find(
            case.problem,
            case.space,
            case.facts,
            capacity=CAPACITY,
            top=3,
            hints=False,
            time_limit_s=time_limit_s,
        )
    except InfeasibleError:
        return None


@in_both
def test_stopped_search_is_honest() -> None:
    stopped, gaps, chosen = 0, 0, numbers(6, 120, first=5000)
    for seed in chosen:
        case = small_case(seed)
        whole, short = answered(case, time_limit_s=math.inf), answered(case, time_limit_s=0.0)
        assert (whole is None) == (short is None)
        if whole is None or short is None:
            continue
        stopped += 1
        best, proof = whole.certificate.best_s, short.certificate
        assert proof.lower_bound_s <= best * (1 + 1e-12) <= proof.best_s * (1 + 2e-12)
        assert proof.best_s == short.prediction.step_time_s
        assert proof.gap == pytest.approx(1 - proof.lower_bound_s / proof.best_s, abs=1e-12)
        assert proof.optimal == (proof.gap == 0.0)
        others = (
            proof.illegal
            + proof.duplicates
            + proof.infeasible
            + proof.bounded_b0
            + proof.bounded_b1
            + proof.simulated
        )
        assert proof.enumerated == others
        gaps += proof.gap > 0
    assert stopped > len(chosen) // 2
    assert gaps
