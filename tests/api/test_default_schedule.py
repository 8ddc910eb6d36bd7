"""A pipeline that names no schedule has that of the training framework."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api.explain_why_not_other_strategy import why
from shardwright.api.simulate_strategy_and_verify_stored import simulation, verify
from shardwright.files.plan_and_simulation_file_contents import stored_simulation
from shardwright.runtime.runtime_registry import load_runtime, runtime_names
from shardwright.search.search_request import Request
from shardwright.strategy.text.grid_notation import changed_grid, default_schedule, parse_grid

REQUEST = Request(
    model="llama-3.2-1b", cluster="h100-sxm:8", seq_len=2048, global_batch=32, runtime="maxtext"
)
NOTE = "assumed schedule=gpipe: maxtext has no 1f1b"


def test_a_framework_without_1f1b_takes_its_own_schedule() -> None:
    named = simulation(REQUEST, strategy="pp4 schedule=gpipe")
    unnamed = simulation(REQUEST, strategy="pp4")
    assert unnamed.grid == named.grid
    assert unnamed.prediction == named.prediction
    assert (unnamed.notes, named.notes) == ((NOTE,), ())
    # The file of it is verified: it has the schedule and the note.
    verify(stored_simulation(unnamed))


@pytest.mark.parametrize(
    ("runtime", "strategy", "schedule"),
    [
        ("maxtext", "pp4 schedule=1f1b", "1f1b"),
        ("maxtext", "dp8", "1f1b"),
        ("shardwright", "pp4", "1f1b"),
        ("shardwright", "pp4 vpp2", "interleaved-1f1b"),
    ],
)
def test_a_named_schedule_stays_and_others_have_1f1b(
    runtime: str, strategy: str, schedule: str
) -> None:
    found = simulation(replace(REQUEST, runtime=runtime), strategy=strategy)
    assert found.grid is not None
    assert found.grid.schedule == schedule
    assert found.notes == ()


def test_a_first_pipeline_of_a_change_has_the_schedule_of_the_framework() -> None:
    stored = stored_simulation(simulation(REQUEST, strategy="dp8 mbs1 zero0 recompute=none"))
    other = why(stored, "pp4").other
    assert other is not None
    assert other.grid == simulation(REQUEST, strategy="pp4").grid
    # A pipeline that the plan has keeps its schedule.
    piped = parse_grid("pp2 dp4 schedule=1f1b")
    assert changed_grid(piped, "pp4", schedules=("gpipe",)).schedule == "1f1b"


@pytest.mark.parametrize("name", runtime_names())
def test_the_default_is_1f1b_or_of_the_framework(name: str) -> None:
    schedules = load_runtime(name).schedules
    found = default_schedule(pp=2, vpp=1, schedules=schedules)
    assert found == "1f1b" if not schedules or "1f1b" in schedules else found in schedules
