"""Options that a search leaves at one value: which they are, and that no change of one of them
gains more than the one that is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api.request_to_problem import capacity_of, facts_of, problem_of, space_of
from shardwright.api.searches.gain_of_unsearched_options import unsearched_of
from shardwright.api.searches.grid_search import plan
from shardwright.api.searches.mixed_search import plan_mixed, unsearched_of_mixed
from shardwright.cost.tables import plan_block_costs as plan_blocks
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.option_vocabulary import BY_NAME, OF_EXPERTS, in_vocabulary_order
from shardwright.search.grid import gain_of_unsearched_options as unsearched_options
from shardwright.search.grid.members.default_runtime_and_recompute_options import LADDER
from shardwright.search.grid.neighbour_strategies import simulated_change
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan

ASKED = Request(model="llama-3.2-1b", cluster="h100-sxm:8", seq_len=4096, global_batch=32, top=0)


@pytest.mark.parametrize("runtime", ["megatron-core", "megatron-core loss=te", "torchtitan"])
def test_the_best_change_is_the_best_of_all(runtime: str) -> None:
    """Every value of every option that is left, simulated alone."""
    asked = replace(ASKED, runtime=runtime)
    answer = plan(asked)
    left = unsearched_of(answer)
    problem = problem_of(asked)
    capacity, space = capacity_of(asked, problem), space_of(asked, problem, facts_of(problem))
    steps: dict[tuple[str, str], float] = {}
    for name, value in left.fixed:
        assert {**dict(problem.runtime.own), **dict(problem.runtime.options)}[name] == value
        for other in offered_values(problem.runtime)[name]:
            done = simulate_grid(under(problem, ((name, other),)), answer.grid)
            if done.need <= capacity:
                steps[name, other] = done.step_time_s
    least = min(steps, key=lambda change: steps[change])
    best_s = answer.prediction.step_time_s
    if steps[least] < best_s * 0.999:
        assert left.best is not None
        assert (left.best.option, left.best.value) == least
        assert left.best.step_time_s == steps[least]
        assert left.best.gain == 1 - steps[least] / best_s
    else:
        assert left.best is None
    counted = {
        *dict(left.fixed),
        *dict(space.options),
        *LADDER,
        *OF_EXPERTS,
        *dict(problem.runtime.options),
    }
    some = {
        name
        for name, values in offered_values(problem.runtime).items()
        if len(values) > 1 and not BY_NAME[name].numerics
    }
    assert some <= counted


@pytest.mark.parametrize(
    "cluster", ["a100-sxm-40gb:2+v100-sxm-16gb:2", "v100-sxm-16gb:2+a100-sxm-40gb:2"]
)
def test_the_best_change_of_a_mixed_plan_is_the_best_of_all(cluster: str) -> None:
    """Each device has the memory of its own kind, not the least of all."""
    asked = Request(
        model="examples/tiny.json",
        cluster=cluster,
        seq_len=256,
        global_batch=16,
        precision="fp16",
        top=0,
    )
    answer = plan_mixed(asked)
    left, problem = unsearched_of_mixed(answer), problem_of(asked)
    steps: dict[tuple[str, str], float] = {}
    for name, value in left.fixed:
        for other in offered_values(problem.runtime)[name]:
            if other != value:
                changed = replace(
                    answer.plan,
                    options=in_vocabulary_order({**dict(answer.plan.options), name: other}.items()),
                )
                done = simulated_change(problem, changed)
                steps |= {} if done is None else {(name, other): done.step_time_s}
    assert len(steps) > 4
    least = min(steps, key=lambda change: steps[change])
    if left.best is None:
        assert steps[least] >= answer.step_time_s * 0.999
    else:
        assert (left.best.option, left.best.value, left.best.step_time_s) == (*least, steps[least])


def test_each_other_value_is_simulated_once_and_the_strategy_itself_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, tried = plan(ASKED), list[Grid | Plan]()

    def counted(
        problem: Problem, strategy: Grid | Plan, *, capacity: int | None
    ) -> SimulatedPlan | None:
        tried.append(strategy)
        return simulated_change(problem, strategy, capacity=capacity)

    monkeypatch.setattr(unsearched_options, "simulated_change", counted)
    priced = plan_blocks._row_on_device.cache_info().misses
    left = unsearched_of(answer)
    offered = offered_values(problem_of(ASKED).runtime)
    assert len(tried) == len(set(tried)) == sum(len(offered[name]) - 1 for name, _ in left.fixed)
    assert answer.grid not in tried
    # Of twelve other values two change attention's layers, two the loss, one what gathers travel
    # by, and one all weight gradients.
    assert len(tried) >= 12
    assert plan_blocks._row_on_device.cache_info().misses - priced <= 2 + 2 + 3 + 2


def test_what_was_pinned_is_not_told() -> None:
    answer = plan(replace(ASKED, pins=(("loss", ("te",)), ("grad_check", ("on", "off")))))
    assert {"loss", "grad_check", "tp_overlap"}.isdisjoint(dict(unsearched_of(answer).fixed))
    assert dict(answer.grid.options)["grad_check"] == "off"
