"""Searches for cost, energy, a front and within a budget: against every plan of tiny clusters, and
what prices do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import inf

import pytest

from shardwright.api.request_to_problem import problem_of
from shardwright.cost.step.dollars_and_joules import Spending
from shardwright.errors import InfeasibleError, UsageError
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.program.training_problem import Problem, under
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.mixed.bounds.cost_bound import interval_holds, least_value
from shardwright.search.mixed.bounds.dollars_or_joules_per_second_bound import (
    floor_holds,
    floor_of,
    least_floors,
    least_rate,
)
from shardwright.search.mixed.find_by_cost_or_energy import find_for_goal
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.search.mixed.pipelines.pool_cost_rates import (
    Goal,
    PricePerSecond,
    price_per_second_of,
)
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan, general_plan
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts, full_subspace
from shardwright.search.mixed_cluster_certificate import Floor, ValuedPart
from shardwright.search.optimality_certificate import stops_of
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import Request
from shardwright.simulator.predict_plan import step_spending
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from tests.search.mixed.test_find_fastest import every_plan, part_of, tiny
from tests.tiers import cases, chosen, in_both, many

CLUSTERS = (
    "a100-sxm-40gb:1/2usd+v100-sxm-16gb:2/0.5usd",
    "a100-sxm-40gb:2/1.5usd+v100-sxm-16gb:1/1usd",
    "a100-sxm-40gb:3/2usd",
)
SLACK = 1e-9


@dataclass(frozen=True)
class Tried:
    """A simulated plan."""

    seconds: float
    spending: Spending


@cache
def every_step(cluster: str) -> tuple[Tried, ...]:
    """Every plan of one and two lanes that fits."""
    problem, found = tiny(cluster, batch=2), []
    for closed in answer_of(cluster, "cost").certificate.mixed.valued.cells[0].shown:  # type: ignore[union-attr]
        pipelines = PricedPipelines.of(MixedStageCosts.of(under(problem, closed.options)))
        for plan in every_plan(pipelines, 2):
            done = simulate_plan(
                problem, general_plan(pipelines.stage_costs, plan, options=closed.options)
            )
            if done.fits:
                found.append(Tried(done.step_time_s, step_spending(problem, done)))
    return tuple(found)


@cache
def answer_of(cluster: str, objective: str, budget: float = inf) -> GeneralAnswer[MixedPlan | None]:
    return find_for_goal(tiny(cluster, batch=2), Goal(objective=objective, budget=budget))


@cache
def fastest() -> GeneralAnswer[MixedPlan | None]:
    """On the first cluster, whatever it costs."""
    return find_mixed(tiny(CLUSTERS[0], batch=2))


def valued_of(answer: GeneralAnswer[MixedPlan | None]) -> ValuedPart:
    valued = part_of(answer.certificate).valued
    assert valued is not None
    return valued


def value(tried: Tried, unit: str) -> float:
    found = tried.spending.usd if unit == "usd" else tried.spending.joules
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cluster", "objective"),
    [
        pytest.param(
            cluster,
            objective,
            marks=() if not i or (i, objective) == (2, "cost") else pytest.mark.proof,
        )
        for i, cluster in enumerate(CLUSTERS)
        for objective in ("cost", "energy", "pareto")
    ],
)
def test_no_plan_of_a_tiny_cluster_takes_less_than_its_time_s_bound(
    cluster: str, objective: str
) -> None:
    found = valued_of(answer_of(cluster, objective))
    steps = every_step(cluster)
    assert len(steps) > 10
    for one in steps:
        assert value(one, found.unit) >= least_value(found.cells, limit_s=one.seconds) * (1 - SLACK)
    best = min(value(one, found.unit) for one in steps)
    assert found.lower_bound <= best * (1 + SLACK)
    assert found.value <= best * 1.02
    assert found.lower_bound > 0.5 * found.value, "a bound of nothing would hold too"


@pytest.mark.parametrize("cluster", chosen(CLUSTERS, CLUSTERS[:1]))
def test_no_plan_takes_less_a_second_than_the_floors_by_its_own_time(cluster: str) -> None:
    problem, ratios = tiny(cluster, batch=2), []
    rows = [one.options for one in valued_of(answer_of(cluster, "cost")).cells[0].shown]
    pools = pools_of(problem.cluster)
    tariff = price_per_second_of(problem.cluster, pools, "cost")
    pipeline_sets = [PricedPipelines.of(MixedStageCosts.of(under(problem, row))) for row in rows]
    for one in every_step(cluster)[::7]:
        least = min(
            least_rate(
                least_floors(
                    pipelines, tariff, one.seconds, enough=inf, max_programs=12, values_cache={}
                )
            )
            for pipelines in pipeline_sets
        )
        # Of devices, not of whole nodes.
        taken = float(tariff.rates @ one.spending.working_devices)
        assert least <= taken * (1 + 1e-6)
        ratios.append(least / taken)
    assert max(ratios) > 0.95, "floors of nothing would hold too"


@pytest.mark.parametrize(
    "cluster", [CLUSTERS[0], *(pytest.param(c, marks=pytest.mark.proof) for c in CLUSTERS[1:])]
)
def test_the_front_is_one_and_no_plan_beats_it_by_more_than_its_gap(cluster: str) -> None:
    answer = answer_of(cluster, "pareto")
    front = valued_of(answer).front
    assert front
    for one, other in pairwise(front):
        assert one.step_time_s < other.step_time_s
        assert one.value > other.value
    for point in front:
        done = simulate_plan(tiny(cluster, batch=2), point.plan)
        spending = step_spending(tiny(cluster, batch=2), done)
        assert (done.step_time_s, spending.usd) == (point.step_time_s, point.value)
        assert 0 < point.lower_bound <= point.value
        for one in every_step(cluster):
            assert one.seconds > point.step_time_s or value(one, "usd") >= point.lower_bound * (
                1 - SLACK
            )
    assert front[-1].value == valued_of(answer).value


@pytest.mark.parametrize(
    ("cluster", "budget"),
    [
        (CLUSTERS[0], 2.0),
        pytest.param(CLUSTERS[1], 1.5, marks=pytest.mark.proof),
        *(pytest.param(CLUSTERS[0], b, marks=pytest.mark.proof) for b in (1.0, 2.9)),
    ],
)
def test_within_a_budget_no_plan_is_faster_than_the_bound(cluster: str, budget: float) -> None:
    answer = answer_of(cluster, "time", budget)
    within = [one for one in every_step(cluster) if (one.spending.usd_per_hour or 0.0) <= budget]
    done = simulate_plan(tiny(cluster, batch=2), answer.plan)
    assert (step_spending(tiny(cluster, batch=2), done).usd_per_hour or inf) <= budget
    assert min(one.seconds for one in within) >= answer.certificate.lower_bound_s
    assert answer.step_time_s <= min(one.seconds for one in within) * 1.02


def test_a_budget_that_no_node_has_is_told() -> None:
    with pytest.raises(InfeasibleError, match=r"rents for 0\.4 dollars an hour") as raised:
        find_for_goal(tiny(CLUSTERS[0], batch=2), Goal(objective="time", budget=0.4))
    assert raised.value.hint is not None
    assert "1" in raised.value.hint


def test_a_dearer_pool_raises_nothing() -> None:
    alone = valued_of(find_for_goal(tiny("a100-sxm-40gb:1/1usd", batch=2), Goal(objective="cost")))
    beside = valued_of(
        find_for_goal(
            tiny("a100-sxm-40gb:1/1usd+v100-sxm-16gb:1/9usd", batch=2), Goal(objective="cost")
        )
    )
    assert beside.value <= alone.value * (1 + 1e-6)
    assert beside.lower_bound <= alone.value


def test_the_cheapest_costs_no_more_than_the_fastest_and_is_no_faster() -> None:
    problem = tiny(CLUSTERS[0], batch=2)
    done = simulate_plan(problem, fastest().plan)
    cheapest = answer_of(CLUSTERS[0], "cost")
    assert valued_of(cheapest).value <= (step_spending(problem, done).usd or 0.0) * (1 + 1e-9)
    assert cheapest.step_time_s >= fastest().certificate.lower_bound_s


def test_floors_hold_and_higher_ones_do_not() -> None:
    problem = tiny(CLUSTERS[0], batch=8)
    pipelines, tariff = market_of(problem)
    limit_s = 2 * find_mixed(problem).step_time_s
    floor = floor_of(pipelines, tariff, full_subspace(pipelines.stage_costs), limit_s, {})
    assert floor.rate
    assert floor_holds(pipelines, tariff, floor)
    assert not floor_holds(pipelines, tariff, replace(floor, rate=1.01 * floor.rate))
    assert not floor_holds(pipelines, tariff, replace(floor, rate=None))
    assert not floor_holds(pipelines, tariff, replace(floor, limit_s=3 * floor.limit_s))


def market_of(problem: Problem) -> tuple[PricedPipelines, PricePerSecond]:
    pools = pools_of(problem.cluster)
    return PricedPipelines.of(MixedStageCosts.of(problem)), price_per_second_of(
        problem.cluster, pools, "cost"
    )


def test_cells_tile_all_times_and_hold_and_no_higher_rate_does() -> None:
    cluster = CLUSTERS[0]
    problem, cells = tiny(cluster, batch=2), valued_of(answer_of(cluster, "cost")).cells
    for one, other in pairwise(cells):
        assert one.begin_s == other.limit_s
    assert cells[-1].begin_s == 0.0
    assert cells[-1].empty
    tariff = price_per_second_of(problem.cluster, pools_of(problem.cluster), "cost")
    rows = dict.fromkeys(one.options for one in cells[0].shown)
    pipeline_sets = {
        row: PricedPipelines.of(MixedStageCosts.of(under(problem, row))) for row in rows
    }
    for cell in cells:
        assert interval_holds(pipeline_sets, tariff, cell)
        if cell.rate is not None:
            assert not interval_holds(pipeline_sets, tariff, replace(cell, rate=1.001 * cell.rate))
        assert not interval_holds(
            pipeline_sets,
            tariff,
            replace(cell, shown=tuple(replace(one, floors=one.floors[1:]) for one in cell.shown)),
        )


def test_rates_of_whole_nodes_are_the_next_ones() -> None:
    cluster = parse_cluster("a100-sxm-40gb:16/900usd+v100-sxm-16gb:16/90usd")
    tariff = price_per_second_of(cluster, pools_of(cluster), "cost")
    assert tariff.round_up(0.01, (2, 2)) == pytest.approx(0.2)
    assert tariff.round_up(0.21, (2, 2)) == pytest.approx(0.4)
    assert tariff.round_up(0.41, (2, 2)) == pytest.approx(2.0)
    assert tariff.round_up(5.0, (2, 2)) == inf
    assert tariff.rate((9, 0)) == pytest.approx(4.0)


def test_a_price_that_is_missing_is_told_in_a_line() -> None:
    with pytest.raises(UsageError, match="states no price of v100-sxm-16gb") as raised:
        find_for_goal(tiny("a100-sxm-40gb:1/2usd+v100-sxm-16gb:1", batch=2), Goal(objective="cost"))
    hint = raised.value.hint or ""
    assert parse_cluster(hint.split(": ")[1].split(" (")[0]).groups[0].price > 0
    with pytest.raises(UsageError, match="the power of tpu-v4 is not known"):
        price_per_second_of(
            parse_cluster("tpu-v4:8"), pools_of(parse_cluster("tpu-v4:8")), "energy"
        )


def test_a_floor_of_nothing_is_no_floor() -> None:
    problem = tiny(CLUSTERS[0], batch=2)
    pipelines, tariff = market_of(problem)
    none = Floor(
        frame=full_subspace(pipelines.stage_costs),
        limit_s=100.0,
        devices=(0.0, 0.0),
        nodes=0.0,
        replicas=2.0,
        money=0.0,
        rate=0.0,
    )
    assert floor_holds(pipelines, tariff, none)
    assert not floor_holds(pipelines, tariff, replace(none, rate=0.1))


@in_both
def test_grids_on_fewer_nodes_are_bounded_by_what_they_pay() -> None:
    """Of a cluster of one kind: every number of nodes is accounted for, and no grid on any takes
    less than its range's bound."""
    most = many(2, 4)
    problem = tiny(f"a100-sxm-40gb:{8 * most}/2usd", batch=many(8, 16))
    found = find_for_goal(problem, Goal(objective="pareto"))
    ranges = part_of(found.certificate).alone
    least = valued_of(found).lower_bound
    assert {8, 16, 8 * most} <= {one.devices for one in ranges}
    for nodes in range(1, most + 1):
        own = replace(problem, cluster=parse_cluster(f"a100-sxm-40gb:{8 * nodes}/2usd"))
        facts = grid_facts(
            own.model,
            devices=8 * nodes,
            global_batch=own.job.global_batch,
            seq_len=own.job.sequence_length,
        )
        best = find(
            own,
            standard_space(own, facts),
            facts,
            capacity=own.cluster.node.accelerator.memory_bytes,
            top=1,
        )
        spending = best.prediction.spending
        assert spending is not None
        assert (spending.usd or 0.0) >= least * (1 - SLACK)
        within = [
            point
            for point in valued_of(found).front
            if point.step_time_s <= best.prediction.step_time_s * (1 + SLACK)
        ]
        assert within
        assert (spending.usd or 0.0) >= min(point.lower_bound for point in within) * (1 - SLACK)


def test_models_whose_pipelines_are_not_searched_have_their_grids() -> None:
    values = {}
    for cluster in (
        "h100-sxm:8/2usd",
        "a100-sxm-80gb:8/1usd",
        "h100-sxm:8/2usd+a100-sxm-80gb:8/1usd",
    ):
        problem = problem_of(
            Request(model="t5-11b", cluster=cluster, seq_len=512, encoder_len=512, global_batch=32)
        )
        found = find_for_goal(problem, Goal(objective="cost"))
        assert (found.detail, part_of(found.certificate).shapes) == (None, 0)
        assert part_of(found.certificate).why_alone == "t5-11b has branches"
        assert 0 < valued_of(found).lower_bound <= valued_of(found).value
        values[cluster] = valued_of(found).value
    one, other, both = values.values()
    assert both == pytest.approx(min(one, other), rel=1e-9)


@pytest.mark.parametrize("limit_s", cases([0.0, 0.1, 0.5], 1))
def test_a_search_stopped_at_the_same_looks_has_the_same_answer(limit_s: float) -> None:
    problem = tiny(CLUSTERS[0], batch=2)
    stopped = find_for_goal(problem, Goal(objective="pareto"), time_limit_s=limit_s)
    assert (
        find_for_goal(problem, Goal(objective="pareto"), stops=stops_of(stopped.certificate))
        == stopped
    )
    assert 0 < valued_of(stopped).lower_bound <= valued_of(stopped).value
