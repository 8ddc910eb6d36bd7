"""The next change of the timeline: it is legal, fits, and was simulated; a proven plan keeps its
pipeline."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from shardwright.api.report.changes.change_that_shortens_idle_time import (
    pipeline_words,
    timeline_change,
)
from shardwright.api.report.changes.find_fastest_simulated_change import (
    MOST_TASKS,
    best_grid_change,
    doubled_batch,
    proven_best,
)
from shardwright.api.report.simulate_stored_plan import SimulatedStep, simulate_stored
from shardwright.api.searches.grid_search import plan
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.cli.main import run
from shardwright.files.plan_and_simulation_file_contents import (
    StoredPlan,
    StoredSimulation,
    file_text,
    stored_answer,
    stored_simulation,
)
from shardwright.search.search_request import Request
from shardwright.strategy.text.grid_notation import changed_grid, parse_grid, print_grid

REQUEST = Request(model="llama-2-7b", cluster="h100-sxm:16", seq_len=2048, global_batch=128)
FILE = Path("folder of mine/best plan.json")


@cache
def simulated(strategy: str) -> tuple[StoredSimulation, SimulatedStep]:
    saved = stored_simulation(simulation(REQUEST, strategy=strategy))
    return saved, simulate_stored(saved)


@cache
def proven() -> tuple[StoredPlan, SimulatedStep]:
    saved = stored_answer(plan(REQUEST))
    return saved, simulate_stored(saved)


def test_the_best_change_is_the_fastest_of_all_words() -> None:
    saved, step = simulated("tp2 sp pp4 dp2 mbs2 zero1")
    assert saved.grid is not None
    change = timeline_change(saved, step, FILE)
    assert change is not None
    assert change.gain > 0
    each = [
        found
        for word in pipeline_words(saved.grid, step.problem.runtime.schedules)
        if (found := best_grid_change(saved, step, FILE, [word])) is not None
    ]
    assert change.simulated == len(each)
    assert change.gain == max(found.gain for found in each)
    assert change.command.startswith("shardwright why 'best plan.json' ")
    again = simulation(REQUEST, strategy=change.strategy).prediction
    assert again.step_time_s == pytest.approx(change.step_s, rel=1e-9)
    assert change.gain == pytest.approx(1 - again.step_time_s / step.prediction.step_time_s)


def test_schedules_are_those_of_the_framework() -> None:
    saved, step = simulated("tp2 sp pp4 dp2 mbs2 zero1")
    assert saved.grid is not None
    schedules = step.problem.runtime.schedules
    for word in pipeline_words(saved.grid, schedules):
        changed = changed_grid(saved.grid, word)
        assert changed != saved.grid
        assert changed.schedule in schedules


def test_a_proven_plan_gets_more_sequences() -> None:
    saved, step = proven()
    assert proven_best(saved)
    assert saved.grid is not None
    change = timeline_change(saved, step, FILE)
    if change is None:
        pytest.skip("twice the batch does not fit")
    assert change.sequences == 2 * REQUEST.global_batch
    assert change.strategy == print_grid(saved.grid)
    larger = replace(REQUEST, global_batch=change.sequences)
    again = simulation(larger, strategy=change.strategy).prediction
    assert again.step_time_s == pytest.approx(change.step_s, rel=1e-9)
    assert "--global-batch 256" in change.command


def test_a_restricted_search_proves_nothing_about_other_pipelines() -> None:
    saved, _ = proven()
    pinned = replace(saved, request=replace(saved.request, pins=(("pp", ("4",)),)))
    assert not proven_best(pinned)
    assert not proven_best(simulated("tp2 sp pp4 dp2 mbs2 zero1")[0])


def test_the_command_of_more_sequences_has_the_options_of_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Limits of the search are left out: `simulate` has no options for them."""
    monkeypatch.chdir(tmp_path)
    saved, step = proven()
    request = replace(REQUEST, dropout=True, gradient_wire="bf16", headroom=0.1)
    saved = replace(saved, request=request)
    file = Path("best.json")
    file.write_text(file_text(saved, file))
    change = doubled_batch(saved, step, file)
    assert change is not None
    assert run([*shlex.split(change.command)[1:], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["step_time_s"] == pytest.approx(change.step_s, rel=1e-8)


def test_no_command_is_named_that_would_simulate_something_else() -> None:
    """No option can say both reserves of memory, so twice the batch is not simulated."""
    saved, step = proven()
    request = replace(saved.request, reserve_bytes=2**30, reserve_fraction=0.01)
    assert timeline_change(replace(saved, request=request), step, FILE) is None


def test_the_number_of_tasks_is_limited() -> None:
    saved, step = simulated("tp2 sp pp4 dp2 mbs2 zero1")
    tasks = len(step.simulated.program.instances)
    words = ["vpp2", "vpp4"] * (2 * MOST_TASKS // tasks)
    change = best_grid_change(saved, step, FILE, words)
    assert change is not None
    assert 0 < change.simulated < len(words) / 2


def test_words_that_break_a_rule_are_left_out() -> None:
    saved, step = simulated("tp2 sp pp4 dp2 mbs2 zero1")
    assert best_grid_change(saved, step, FILE, ["tp3", "mbs7", "no such word"]) is None
    same = parse_grid("tp2 sp pp4 dp2 mbs2 zero1", devices=16)
    assert best_grid_change(saved, step, FILE, [print_grid(same)]) is None
