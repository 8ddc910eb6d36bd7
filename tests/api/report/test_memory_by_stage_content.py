"""Items of memory add up, the curve reaches the peak, and changes free what their commands show."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import pairwise

import pytest

from shardwright.api.explain_why_not_other_strategy import why
from shardwright.api.report.changes import changes_that_free_memory
from shardwright.api.report.changes.changes_that_free_memory import LEAST_FREED, MORE_ROOM
from shardwright.api.report.memory_by_stage_content import MOST_POSITIONS, memory_by_stage
from shardwright.api.searches.grid_search import plan
from shardwright.files.plan_and_simulation_file_contents import StoredPlan
from shardwright.program.training_problem import Problem
from shardwright.report.page.view_data_types.memory_by_stage import MemoryByStage
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid
from shardwright.simulator.simulated_trace import simulated_trace
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid
from tests.api.report.stored_plans import KINDS, SIMULATED, simulated, stored


def memory_of(kind: str) -> MemoryByStage:
    return memory_by_stage(stored(kind), simulated(kind), file_name="best.json")


@pytest.mark.parametrize("kind", KINDS)
def test_items_of_a_stage_add_up_to_what_the_file_says(kind: str) -> None:
    memory, saved = memory_of(kind), stored(kind)
    for stage in memory.stages:
        assert sum(stage.bytes_by_item) == stage.reserved_bytes
        assert len(stage.bytes_by_item) == len(memory.items)
    assert memory.stages_left_out == 0
    fullest = memory.stages[memory.fullest]
    assert sorted((stage.reserved_bytes, stage.devices) for stage in memory.stages) == sorted(
        (stage.reserved, stage.devices) for stage in saved.prediction.stages
    )
    assert fullest.share == max(stage.share for stage in memory.stages)
    assert memory.fits == saved.prediction.fits
    if not memory.host:
        assert memory.fits == (fullest.share <= 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_curve_reaches_the_reserved_bytes_and_never_more(kind: str) -> None:
    memory = memory_of(kind)
    curve, fullest = memory.curve, memory.stages[memory.fullest]
    kept, last = curve.series[0].values, curve.series[-1].values
    assert max(size for size in last if size is not None) == fullest.reserved_bytes
    sizes = dict(zip(memory.items, fullest.bytes_by_item, strict=True))
    brief = sizes.get("logits", 0) + sizes.get("temporary tensors", 0)
    if len(curve.series) > 1:
        assert all(
            with_brief is not None and alone is not None and with_brief - alone >= brief
            for with_brief, alone in zip(last, kept, strict=True)
        )
    assert brief == 0 or len(curve.series) > 1
    assert len(curve.x.values) <= MOST_POSITIONS + 1
    assert curve.x.values[0] == 0.0
    assert list(curve.x.values) == sorted(curve.x.values)
    assert curve.capacity == fullest.capacity_bytes
    assert curve.y.ticks[-1] >= max(fullest.reserved_bytes, fullest.capacity_bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_curve_is_the_trace(kind: str) -> None:
    """At each position the curve has the most that the trace holds until the next."""
    memory, step = memory_of(kind), simulated(kind)
    shares = [one.reserved / one.capacity for one in step.simulated.memory]
    number = max(range(len(shares)), key=shares.__getitem__)
    device = step.simulated.program.classes[number].devices.first
    trace = simulated_trace(step.simulated, plan=kind)
    samples = [sample for sample in trace.memory if sample.device == device]
    positions, kept = memory.curve.x.values, memory.curve.series[0].values
    for place, (start, end) in enumerate(pairwise(positions)):
        before = [sample.held for sample in samples if sample.time_s <= start][-1:]
        inside = [sample.held for sample in samples if start <= sample.time_s < end]
        assert kept[place] == max(before + inside)


@pytest.mark.parametrize("kind", KINDS)
def test_changes_free_memory_and_are_sorted(kind: str) -> None:
    memory, saved = memory_of(kind), stored(kind)
    order = [(not change.fits, change.step_s) for change in memory.changes]
    assert order == sorted(order)
    least = LEAST_FREED * saved.prediction.capacity_bytes
    for change in memory.changes:
        assert change.reserved_bytes == saved.prediction.reserved_bytes - change.freed_bytes
        assert change.longer == pytest.approx(change.step_s / saved.prediction.step_time_s - 1)
        assert change.freed_bytes >= least or not memory.fits
    if saved.grid is None:
        assert not memory.changes
    elif saved.prediction.devices > 1:
        assert len(memory.changes) >= 3


@pytest.mark.parametrize("kind", ["no pipeline", "recompute", "grid", "does not fit"])
def test_the_command_of_a_change_shows_its_step_and_memory(kind: str) -> None:
    memory, saved = memory_of(kind), stored(kind)
    simulated_changes = [change for change in memory.changes if not change.searched]
    assert len(simulated_changes) >= 3
    for change in simulated_changes:
        verb, file, text = shlex.split(change.command)[1:]
        assert (verb, file) == ("why", "best.json")
        other = why(saved, text).other
        assert other is not None
        assert other.prediction.step_time_s == pytest.approx(change.step_s, rel=1e-12)
        assert other.prediction.reserved_bytes == change.reserved_bytes
        assert other.prediction.fits == change.fits


def test_the_searched_change_is_the_best_plan_with_more_room() -> None:
    memory, saved = memory_of("grid"), stored("grid")
    assert isinstance(saved, StoredPlan)
    change = next(change for change in memory.changes if change.searched)
    words = shlex.split(change.command)
    headroom = float(words[words.index("--headroom") + 1].rstrip("%")) / 100
    room = 1 - saved.prediction.reserved_bytes / saved.prediction.capacity_bytes
    assert headroom >= room + MORE_ROOM
    again = plan(replace(saved.request, headroom=headroom), sensitive=False)
    assert again.prediction.step_time_s == pytest.approx(change.step_s, rel=1e-12)
    assert print_grid(again.grid) == change.strategy
    assert again.prediction.reserved_bytes == change.reserved_bytes


def test_a_plan_that_does_not_fit_gets_the_fastest_that_fits() -> None:
    memory, saved = memory_of("does not fit"), stored("does not fit")
    assert not memory.fits
    best = memory.changes[0]
    assert best.fits
    assert best.searched
    assert best.step_s == pytest.approx(plan(saved.request).prediction.step_time_s, rel=1e-12)


def test_offloaded_bytes_are_in_host_memory() -> None:
    (host,) = memory_of("offload").host
    (expected,) = stored("offload").prediction.host_memory
    assert sum(item.size_bytes for item in host.items) == host.needed_bytes == expected.need
    assert all(not memory_of(kind).host for kind in SIMULATED if kind != "offload")


def test_few_strategies_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of a plan that fits tries each axis once, so that it takes little time."""
    tried: list[Grid] = []

    def counted(problem: Problem, grid: Grid) -> SimulatedPlan:
        tried.append(grid)
        return simulate_grid(problem, grid)

    monkeypatch.setattr(changes_that_free_memory, "simulate_grid", counted)
    memory_of("grid")
    assert 3 <= len(tried) <= 12
    assert len(set(tried)) == len(tried)
