"""The next change of a general plan: a runtime option that is simulated, with its command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.api.report.changes.change_that_shortens_idle_time import (
    OPTIONS_OF_WAITS,
    timeline_change,
)
from shardwright.api.report.changes.find_fastest_simulated_change import best_option_change
from shardwright.api.report.communication_groups_content import groups_change
from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.cli.main import run
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation, file_text
from shardwright.report.page.view_data_types.simulated_change import SimulatedChange
from tests.api.report.stored_plans import simulated, stored

FILE = Path("best.json")


@pytest.mark.parametrize("change_of", [timeline_change, groups_change])
def test_the_command_repeats_the_simulation(
    change_of: Callable[[StoredSimulation, SimulatedStep, Path], SimulatedChange | None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    saved, step = stored("mixed"), simulated("mixed")
    assert saved.grid is None
    FILE.write_text(file_text(saved, FILE))
    change = change_of(saved, step, FILE)
    assert change is not None
    assert change.gain == pytest.approx(1.0 - change.step_s / step.prediction.step_time_s)
    assert change.difference == pytest.approx(-change.gain)
    assert run([*shlex.split(change.command)[1:], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["step_time_s"] == pytest.approx(change.step_s, rel=1e-8)


def test_the_best_option_is_the_fastest_of_all() -> None:
    saved, step = stored("mixed"), simulated("mixed")
    names = ("loss", *OPTIONS_OF_WAITS)
    best = best_option_change(saved, step, FILE, names)
    each = [
        found
        for name in names
        if (found := best_option_change(saved, step, FILE, (name,))) is not None
    ]
    assert best is not None
    assert best.gain == max(one.gain for one in each) > 0
    assert best.change.startswith("loss=")
    assert best.simulated == sum(one.simulated for one in each)


def test_options_that_are_chosen_stay() -> None:
    """Of the plan and of the request's runtime: the command could not change the first."""
    saved, step = stored("mixed"), simulated("mixed")
    own = tuple(dict(step.plan.options))
    assert own
    assert best_option_change(saved, step, FILE, own) is None
    decided = replace(saved, runtime=f"{saved.runtime} loss=plain")
    assert best_option_change(decided, step, FILE, ("loss",)) is None


def test_grids_have_other_changes() -> None:
    saved, step = stored("grid"), simulated("grid")
    assert best_option_change(saved, step, FILE, ("loss",)) is None
