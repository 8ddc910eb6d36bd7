"""A certificate is checked again: an honest one holds, a changed one does not."""

import random
from dataclasses import replace

import pytest

from shardwright.errors import DataError, InfeasibleError
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.verify_certificate import recheck
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.search_answer import Answer
from tests.search.problems import Case, small_case

CAPACITY = 10**15


@pytest.fixture(scope="module")
def certified() -> tuple[Case, Answer]:
    for seed in range(4000, 4100):
        case = small_case(seed)
        if case.facts.devices >= 8:
            answer = _found(case)
            if (
                answer is not None
                and len(answer.alternatives) == 3
                and answer.alternatives[2].step_time_s > 1.01 * answer.prediction.step_time_s
            ):
                return case, answer
    raise AssertionError("some problem has four members")


def _found(case: Case) -> Answer | None:
    try:
        return find(case.problem, case.space, case.facts, capacity=CAPACITY, top=4, hints=False)
    except InfeasibleError:
        return None


def verify(case: Case, answer: Answer) -> object:
    return recheck(
        case.problem, case.space, case.facts, answer, capacity=CAPACITY, generator=random.Random(0)
    )


def test_honest_certificate_holds(certified: tuple[Case, Answer]) -> None:
    case, answer = certified
    verified = recheck(
        case.problem, case.space, case.facts, answer, capacity=CAPACITY, generator=random.Random(0)
    )
    assert verified.strategies == answer.certificate.strategies
    assert verified.sampled >= 1
    assert verified.drift < 1e-12


@pytest.mark.parametrize(
    "name",
    [
        "enumerated",
        "illegal",
        "duplicates",
        "infeasible",
        "bounded_b0",
        "bounded_b1",
        "simulated",
        "best_s",
        "lower_bound_s",
        "gap",
        "universal_gap",
    ],
)
def test_changed_number_is_found(certified: tuple[Case, Answer], name: str) -> None:
    case, answer = certified
    value = getattr(answer.certificate, name)
    changed = value * 0.99 + (value == 0) * 0.01 if isinstance(value, float) else value + 1
    claim = replace(answer.certificate, **{name: changed})
    with pytest.raises(DataError):
        verify(case, replace(answer, certificate=claim))


def test_counts_moved_between_fates_are_found(certified: tuple[Case, Answer]) -> None:
    """The sum still adds up, but a member was declared infeasible."""
    case, answer = certified
    claim = answer.certificate
    moved = replace(
        claim,
        infeasible=claim.infeasible + claim.bounded_b0 + claim.bounded_b1,
        bounded_b0=0,
        bounded_b1=0,
    )
    with pytest.raises(DataError):
        verify(case, replace(answer, certificate=moved))


@pytest.mark.parametrize(
    "changed", [{"digest": "0" * 64}, {"space": "standard: 1 devices"}, {"optimal": False}]
)
def test_changed_words_are_found(
    certified: tuple[Case, Answer], changed: dict[str, object]
) -> None:
    case, answer = certified
    claim: Certificate = replace(answer.certificate, **changed)  # type: ignore[arg-type]
    with pytest.raises(DataError):
        verify(case, replace(answer, certificate=claim))


def test_another_strategy_is_found(certified: tuple[Case, Answer]) -> None:
    """A slower strategy under the best one's certificate, and one that is certified as the best
    with its own time."""
    case, answer = certified
    slower = answer.alternatives[2]
    with pytest.raises(DataError):
        verify(case, replace(answer, grid=slower.grid))
    claim = replace(answer.certificate, best_s=slower.step_time_s, lower_bound_s=slower.step_time_s)
    with pytest.raises(DataError):
        verify(case, replace(answer, grid=slower.grid, certificate=claim))
    gap = 1.0 - slower.step_time_s * 0.999 / slower.step_time_s
    open_claim = replace(
        claim, lower_bound_s=slower.step_time_s * (1 - gap), gap=gap, optimal=False
    )
    universal = (
        1.0 - (1.0 - open_claim.universal_gap) * answer.certificate.best_s / slower.step_time_s
    )
    with pytest.raises(DataError, match="less than the plan's bound"):
        verify(
            case,
            replace(
                answer,
                grid=slower.grid,
                alternatives=(),
                certificate=replace(open_claim, universal_gap=universal),
            ),
        )


def test_strategy_outside_the_space_is_found(certified: tuple[Case, Answer]) -> None:
    case, answer = certified
    with pytest.raises(DataError):
        verify(case, replace(answer, grid=replace(answer.grid, dp=answer.grid.dp * 2)))


def test_open_gap_is_checked_too(certified: tuple[Case, Answer]) -> None:
    """A search that was stopped claims less, and what it claims holds."""
    case, _ = certified
    short = find(case.problem, case.space, case.facts, capacity=CAPACITY, top=4, time_limit_s=0.0)
    assert verify(case, short)


def test_another_problem_is_found(certified: tuple[Case, Answer]) -> None:
    case, answer = certified
    other = replace(
        case,
        problem=replace(
            case.problem, job=replace(case.problem.job, dropout=not case.problem.job.dropout)
        ),
    )
    with pytest.raises(DataError, match="another problem"):
        verify(other, answer)
