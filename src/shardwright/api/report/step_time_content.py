"""Contents of the report's view of a step's time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.api.report.changes.search_again_where_part_takes_no_time import (
    is_proven_grid_search,
    plan_if_free,
)
from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.api.request_to_command import command_text
from shardwright.api.searches.gain_of_unsearched_options import unsearched_of
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, StoredSimulation
from shardwright.program.problem_where_step_part_takes_no_time import REMOVABLE_PARTS
from shardwright.progress_callback import Progress
from shardwright.report.page.view_data_types.step_time_parts import (
    BetterSize,
    FasterOption,
    SecondBest,
    StepTimePart,
    StepTimeParts,
)
from shardwright.report.screens.step_time_table import part_name
from shardwright.strategy.text.grid_notation import print_grid

LEAST_SHARE: Final = 0.01
"""Smallest share of the step of a part that is removed to see what it is worth."""
_WAITING: Final = {
    "bubble": "no single cost: it follows from the schedule and the other parts",
    "slowdown": "no single cost: it follows from what runs at the same time",
    "uneven": "no single cost: it follows from the unequal work of the stage's devices",
}
_SMALL: Final = "less than one percent of the step"


def step_time_parts(
    saved: StoredSimulation, step: SimulatedStep, *, progress: Progress | None = None
) -> StepTimeParts:
    """Parts of the critical device's step, and what each would be worth if it took no time.

    Args:
        step: the stored plan, simulated.
    """
    parts = tuple(
        _part(saved, step, name, seconds, progress=progress)
        for name, seconds in sorted(saved.prediction.breakdown_s, key=lambda part: -part[1])
        if seconds
    )
    gains = [-1.0 if part.if_free is None else part.if_free.gain for part in parts]
    dearest = max(range(len(parts)), key=gains.__getitem__) if max(gains, default=-1.0) > 0 else -1
    return StepTimeParts(
        step_s=saved.prediction.step_time_s,
        parts=parts,
        dearest=dearest,
        option=_faster_option(saved),
        size=_better_size(saved),
        second=_second_best(saved),
    )


def _part(
    saved: StoredSimulation,
    step: SimulatedStep,
    name: str,
    seconds: float,
    *,
    progress: Progress | None,
) -> StepTimePart:
    """One part of the breakdown, with the step without it where it is large enough."""
    share = seconds / saved.prediction.step_time_s
    without = (
        plan_if_free(saved, step, name, progress=progress)
        if share >= LEAST_SHARE and name in REMOVABLE_PARTS
        else None
    )
    note = _WAITING.get(name, _SMALL) if without is None else ""
    return StepTimePart(
        name=part_name(name), seconds=seconds, share=share, if_free=without, note=note
    )


def _faster_option(saved: StoredSimulation) -> FasterOption | None:
    """The option that the search kept at one value and whose other value saves most; else None."""
    answer = saved.answer if isinstance(saved, StoredPlan) else None
    if answer is None or not is_proven_grid_search(saved):
        return None
    best = unsearched_of(answer).best
    if best is None:
        return None
    option = f"{best.option}={best.value}"
    pins = (*saved.request.pins, (best.option, (best.value,)))
    command = command_text(replace(saved.request, pins=pins))
    return FasterOption(option=option, step_s=best.step_time_s, gain=best.gain, command=command)


def _better_size(saved: StoredSimulation) -> BetterSize | None:
    """The nearby batch or number of devices of the file's search that gains most; else None."""
    nearby = saved.nearby if isinstance(saved, StoredPlan) else ()
    best = max(nearby, key=lambda one: one.gain, default=None)
    if best is None:
        return None
    changed = replace(saved.request, global_batch=best.global_batch)
    same_devices = best.devices == saved.prediction.devices + saved.prediction.idle_devices
    return BetterSize(
        devices=best.devices,
        sequences=best.global_batch,
        step_s=best.step_time_s,
        gain=best.gain,
        command=command_text(changed) if same_devices else "",
    )


def _second_best(saved: StoredSimulation) -> SecondBest | None:
    """The first of the file's next best plans; None without any."""
    others = saved.alternatives if isinstance(saved, StoredPlan) else ()
    if not others:
        return None
    return SecondBest(
        strategy=print_grid(others[0].grid),
        step_s=others[0].step_time_s,
        longer=others[0].step_time_s / saved.prediction.step_time_s - 1.0,
    )
