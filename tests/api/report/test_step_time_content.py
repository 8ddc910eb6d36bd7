"""Parts of a step add up to it, and the step without a part is that of the changed problem."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cache

import pytest

from shardwright.api.report.changes.search_again_where_part_takes_no_time import (
    SAME_PLAN,
    plan_if_free,
)
from shardwright.api.report.simulate_stored_plan import simulate_stored
from shardwright.api.report.step_time_content import LEAST_SHARE, step_time_parts
from shardwright.api.request_to_problem import capacity_of, facts_of, space_of
from shardwright.api.searches.grid_search import plan
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, stored_answer
from shardwright.program.problem_where_step_part_takes_no_time import (
    REMOVABLE_PARTS,
    with_free_part,
)
from shardwright.report.page.view_data_types.step_time_parts import StepTimeParts
from shardwright.report.screens.step_time_table import part_name
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.search_request import Choices, Request
from shardwright.simulator.simulate_plan import simulate_grid, simulate_plan
from shardwright.simulator.step_breakdown import breakdown
from tests.api.report.stored_plans import KINDS, SEARCHED, simulated, stored
from tests.search.brute import count
from tests.tiers import in_both, in_proof


@cache
def parts_of(kind: str) -> StepTimeParts:
    """The parts of the step of a kind's plan."""
    return step_time_parts(stored(kind), simulated(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up_to_the_step(kind: str) -> None:
    parts = parts_of(kind)
    assert sum(part.seconds for part in parts.parts) == pytest.approx(parts.step_s, rel=1e-9)
    assert sum(part.share for part in parts.parts) == pytest.approx(1.0, rel=1e-9)
    seconds = [part.seconds for part in parts.parts]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_each_large_part_is_removed_or_says_why_not(kind: str) -> None:
    parts = parts_of(kind)
    removable = {part_name(name) for name in REMOVABLE_PARTS}
    for part in parts.parts:
        removed = part.share >= LEAST_SHARE and part.name in removable
        assert (part.if_free is not None) == removed
        assert bool(part.note) != removed
        if part.if_free is not None:
            assert part.if_free.searched == (kind == "grid")
            assert part.if_free.gain == pytest.approx(1 - part.if_free.step_s / parts.step_s)
            assert part.if_free.step_s <= part.if_free.same_plan_s * (1 + 1e-12)
            assert part.if_free.strategy == SAME_PLAN or part.if_free.searched
    gains = [part.if_free.gain for part in parts.parts if part.if_free is not None]
    assert parts.parts[parts.dearest].if_free.gain == max(gains)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_search_the_stored_plan_is_simulated(kind: str) -> None:
    step = simulated(kind)
    for part in ("attention", "jitter"):
        found = plan_if_free(stored(kind), step, part)
        assert found is not None
        free = simulate_plan(with_free_part(step.problem, part), step.plan)
        assert found.same_plan_s == free.step_time_s


@in_both
def test_the_searched_step_is_the_least_of_all_members() -> None:
    """Every member of a small space is simulated in the changed problem."""
    request = Request(
        model="llama-3.1-8b",
        cluster="h100-sxm:8",
        seq_len=2048,
        global_batch=16,
        pins=(
            ("recompute", ("none",)),
            ("mbs", ("1",)),
            ("cp", ("1",)),
            ("pp", ("1", "2")),
            ("vpp", ("1",)),
            ("zero", ("1", "2")),
            ("offload", ("0",)),
            ("shard", ("0",)),
            ("order", ("tp-cp-ep-dp-pp",)),
            ("tp_overlap", ("userbuffers",)),
        ),
    )
    saved = stored_answer(plan(request))
    step = simulate_stored(saved)
    facts = facts_of(step.problem)
    space = space_of(saved.request, step.problem, facts)
    capacity = capacity_of(saved.request, step.problem)
    grids = count(step.problem, space, facts).grids.values()
    for part in ("sharding", *(("gemm", "tp") if in_proof() else ())):
        free = with_free_part(step.problem, part)
        every = [simulate_grid(free, grid) for grid in grids]
        least = min(one.step_time_s for one in every if one.fits_in(capacity))
        found = plan_if_free(saved, step, part)
        assert found is not None
        assert found.searched
        assert found.step_s == pytest.approx(least, rel=1e-12)
        assert found.strategy != SAME_PLAN or found.step_s == found.same_plan_s


@pytest.mark.parametrize("pins", [(), (("pp", ("3",)),)])
def test_the_plan_without_jitter_is_the_best_of_a_search(pins: Choices) -> None:
    """Of plans on all devices, and of three stages, which leave devices idle."""
    request = Request(
        model="llama-3.1-8b", cluster="h100-sxm:32", seq_len=2048, global_batch=64, pins=pins
    )
    saved = stored_answer(plan(request))
    assert bool(saved.prediction.idle_devices) == bool(pins)
    step = simulate_stored(saved)
    found = plan_if_free(saved, step, "jitter")
    assert found is not None
    facts = facts_of(step.problem)
    searched = search(
        with_free_part(step.problem, "jitter"),
        space_of(saved.request, step.problem, facts),
        facts,
        capacity=capacity_of(saved.request, step.problem),
        top=1,
    )
    best = searched.outcome.ranked[0]
    assert found.searched
    assert found.step_s == pytest.approx(best.step_time_s, rel=1e-12)
    assert found.step_s < saved.prediction.step_time_s * (1 - 1e-4)
    assert (found.strategy == SAME_PLAN) == (best.grid == saved.grid)


def test_waiting_is_not_removed() -> None:
    assert plan_if_free(stored("grid"), simulated("grid"), "bubble") is None


def test_the_command_of_an_option_repeats_its_step() -> None:
    saved = stored("grid")
    assert isinstance(saved, StoredPlan)
    option = parts_of("grid").option
    assert option is not None
    assert option.step_s == pytest.approx((1 - option.gain) * saved.prediction.step_time_s)
    words = shlex.split(option.command)
    name, _, value = option.option.partition("=")
    assert words[words.index("--pin") + 1] == option.option
    pinned = plan(replace(saved.request, pins=((name, (value,)),)), sensitive=False)
    assert pinned.prediction.step_time_s <= option.step_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_only_searches_rank_a_second_plan(kind: str) -> None:
    second = parts_of(kind).second
    assert (second is not None) == (kind == "grid")
    if second is not None:
        assert second.longer >= 0
    assert kind in SEARCHED or second is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_part_is_gone_from_the_breakdown(kind: str) -> None:
    """Of grids, general plans and plans of several kinds of devices."""
    step = simulated(kind)
    for part in REMOVABLE_PARTS:
        free = simulate_plan(with_free_part(step.problem, part), step.plan)
        assert dict(breakdown(free)).get(part, 0.0) <= 1e-9 * free.step_time_s
        assert [one.items for one in free.memory] == [one.items for one in step.simulated.memory]
