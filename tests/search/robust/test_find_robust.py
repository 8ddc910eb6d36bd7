"""One plan for several states of a cluster: against every grid of small spaces, simulated in every
state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from shardwright.errors import InfeasibleError
from shardwright.hardware.slowdown_scenarios import NodeState, State, cluster_in_state, time_shares
from shardwright.search.certificate_part_of_cluster_states import tail_mean
from shardwright.search.parallel.engine_by_name import PROCESSES, engine_of
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.robust import find_robust as robust
from shardwright.search.robust.best_plans_in_one_state import (
    Contender,
    GridQuestion,
    StateQuestion,
    seconds_in,
)
from shardwright.search.robust.find_robust import find_robust
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_time_limit import STOP
from tests.search.brute import count
from tests.search.problems import Case, small_case
from tests.tiers import in_both, in_proof, many, seeds

PROBLEMS = many(4, 12)
"""In a block."""
LEVELS = (0.0, 0.5, 0.9, 1.0)


def random_states(generator: Random, nodes: int) -> tuple[State, ...]:
    """The cluster as it is, and up to three states in which something of it is slower."""
    states = [State(name="usual", weight=generator.choice((1.0, 4.0)))]
    for number in range(generator.randint(1, 3)):
        slow = NodeState(
            node=generator.randrange(nodes),
            devices=generator.choice((1.0, 0.6)),
            cards=generator.choice((1.0, 0.3)),
        )
        states.append(
            State(
                name=f"slow {number}",
                weight=generator.choice((0.2, 1.0)),
                devices=generator.choice((1.0, 0.7)),
                network=generator.choice((1.0, 0.5, 0.05)),
                nodes=(slow,) if generator.random() < 0.4 else (),
            )
        )
    return tuple(states)


def questions_of(case: Case, states: tuple[State, ...]) -> tuple[StateQuestion, ...]:
    memory, cluster = 2**30, case.problem.cluster
    capacity = cluster.node.accelerator.memory_bytes
    found = []
    for state, share in zip(states, time_shares(states), strict=True):
        alike = replace(case.problem, cluster=cluster_in_state(cluster, state.alike))
        grids = GridQuestion(
            problem=alike, space=case.space, facts=case.facts, capacity=capacity, memory=memory
        )
        found.append(
            StateQuestion(
                state=state,
                share=share,
                problem=replace(case.problem, cluster=cluster_in_state(cluster, state)),
                bounding=grids,
            )
        )
    return tuple(found)


@pytest.mark.parametrize("block", seeds(1, 8))
def test_answer_equals_brute_force(block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * PROBLEMS, (block + 1) * PROBLEMS):
        generator = Random(seed)
        case = small_case(seed + 500, most=many(40, 1500))
        questions = questions_of(
            case,
            random_states(generator, sum(group.count for group in case.problem.cluster.groups)),
        )
        level = generator.choice(LEVELS)
        shares = [one.share for one in questions]
        grids = count(case.problem, case.space, case.facts).grids.values()
        steps = [
            [
                seconds_in(questions, (at, Contender(strategy=one, text="")))
                for at in range(len(questions))
            ]
            for one in grids
        ]
        if not steps:
            with pytest.raises(InfeasibleError):
                find_robust(questions, level=level, engine=Serial())
            continue
        best_s = min(tail_mean(row, shares, level=level) for row in steps)
        found = find_robust(questions, level=level, engine=Serial(), top=2)
        claim = found.certificate
        assert claim.best_s == pytest.approx(
            tail_mean(found.detail, shares, level=level), rel=1e-12
        )
        assert claim.lower_bound_s <= best_s * (1 + 1e-9)
        if claim.optimal:
            assert claim.best_s == pytest.approx(best_s, rel=1e-9)
        for at in range(len(questions)):
            assert claim.scenarios is not None
            assert claim.scenarios.outcomes[at].lower_bound_s <= min(row[at] for row in steps) * (
                1 + 1e-9
            )
        own = {
            min(range(len(steps)), key=lambda row, at=at: steps[row][at])
            for at in range(len(questions))
        }
        seen.update(
            problems=1,
            optimal=claim.optimal,
            differ=len(own) > 1,
            nodes=any(one.state.nodes for one in questions),
        )
    assert seen["optimal"] > 0.8 * seen["problems"]
    # Some block of a proof may have neither.
    assert in_proof() or (seen["differ"] and seen["nodes"])


def small() -> tuple[StateQuestion, ...]:
    case = small_case(503, most=300)
    states = (State(name="usual", weight=0.7), State(name="busy", weight=0.3, network=0.05))
    return questions_of(case, states)


def told(found: GeneralAnswer[tuple[float, ...]]) -> str:
    return repr((found.strategy, found.detail, found.certificate))


@in_both
def test_the_answer_is_the_same_on_any_number_of_processes() -> None:
    questions = small()
    alone = told(find_robust(questions, level=0.5, engine=Serial(), top=3))
    for workers in (1, 2, 3) if in_proof() else (2,):
        with engine_of(PROCESSES, workers=workers, least_s=0.0) as engine:
            assert told(find_robust(questions, level=0.5, engine=engine, top=3)) == alone


@pytest.mark.usefixtures("ray")
def test_the_answer_is_the_same_on_ray() -> None:
    questions = small()
    with engine_of("ray", workers=2, least_s=0.0) as engine:
        assert told(find_robust(questions, level=0.5, engine=engine, top=3)) == told(
            find_robust(questions, level=0.5, engine=Serial(), top=3)
        )


@in_both
def test_a_search_that_ends_early_claims_no_more_than_it_has_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one ranked plan a state the bound is the mean of the states' own best, and it rises with
    the ranking."""
    case = small_case(503, most=300)
    questions = questions_of(
        case,
        (
            State(name="usual"),
            State(name="busy", network=0.01),
            State(name="hot", devices=0.4, network=0.3),
        ),
    )
    bounds = []
    for ranked in ((1,), (4,), (16,), (64,)) if in_proof() else ((1,), (16,)):
        monkeypatch.setattr(robust, "RANKED", ranked)
        bounds.append(find_robust(questions, level=0.0, engine=Serial()).certificate.lower_bound_s)
    assert bounds == sorted(bounds)
    own = [
        outcome.best_s
        for outcome in find_robust(
            questions, level=0.0, engine=Serial()
        ).certificate.scenarios.outcomes
    ]  # type: ignore[union-attr]
    assert bounds[0] == pytest.approx(min(bounds[-1], sum(own) / 3), rel=1e-9)


def test_searches_that_were_stopped_claim_no_more_than_they_have_shown() -> None:
    """A stopped search ranks fewer plans than were asked for: those that are left are not none."""
    case = small_case(503, most=300)
    questions = questions_of(case, (State(name="usual"), State(name="busy", network=0.01)))
    grids = count(case.problem, case.space, case.facts).grids.values()
    shares = [one.share for one in questions]
    steps = [
        [seconds_in(questions, (at, Contender(strategy=one, text=""))) for at in range(2)]
        for one in grids
    ]
    STOP.set()
    try:
        claim = find_robust(questions, level=0.0, engine=Serial()).certificate
    finally:
        STOP.clear()
    assert not claim.optimal
    assert claim.lower_bound_s <= min(tail_mean(row, shares, level=0.0) for row in steps) * (
        1 + 1e-9
    )
