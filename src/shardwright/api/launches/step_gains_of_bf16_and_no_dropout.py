"""Find the number format or dropout of a launch that slows its step most.

No search option changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from shardwright.api.request_to_problem import problem_of
from shardwright.api.simulate_grid_or_plan_of_request import simulate_legal_strategy
from shardwright.dtype import Dtype
from shardwright.errors import ShardwrightError
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.megatron.arguments_megatron_rejects_or_ignores import REFUSED_LAYERS
from shardwright.frameworks.registry import READERS
from shardwright.frameworks.settings.setting_table import half_settings
from shardwright.model.ir.model_graph import Model
from shardwright.program.strategy_rule_violations import grid_violations
from shardwright.search.advice_answer import Change
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers
from shardwright.strategy.grid.parallelism_grid import Grid

LEAST_GAIN: Final = 0.01
"""Least gain, as a share of the step, of a reported cause."""


def job_causes(launch: Launch, request: Request, now: Simulation | None) -> tuple[Change, ...]:
    """Changes that gain over 1 %: 16 bits instead of fp32, no dropout; largest gain first.

    Only causes with a gain above `LEAST_GAIN` are returned.

    Args:
        now: the launch as it is; None = it cannot run, and nothing is compared.
    """
    if now is None:
        return ()
    changes = [
        change
        for job_change in _changed_jobs(launch, request)
        if (change := _gain_of_changed_job(launch, now, *job_change)) is not None
    ]
    return tuple(
        sorted(
            (change for change in changes if change.gain > LEAST_GAIN),
            key=lambda change: -change.gain,
        )
    )


def is_repaired(launch: Launch, grid: Grid, model: Model) -> bool:
    """True if the framework refuses nothing, or only unequal stages and `grid` has equal ones.

    Pipeline stages with equal numbers of layers repair one of the framework's rules. No strategy
    repairs the others.
    """
    layers = num_layers(model)
    return all(
        broken.rule == REFUSED_LAYERS and layers % (grid.pp * grid.vpp) == 0
        for broken in launch.refused
    )


def _changed_jobs(
    launch: Launch, request: Request
) -> Iterator[tuple[str, Request, tuple[tuple[str, str], ...]]]:
    """Yield (text, request, settings): 16 bits in place of fp32, and no dropout."""
    if request.precision == Dtype.FP32.value:
        for half in (Dtype.BF16.value, Dtype.FP16.value):
            try:
                problem_of(replace(request, precision=half))
            except ShardwrightError:
                continue
            yield (
                f"precision {half} instead of fp32",
                replace(request, precision=half),
                half_settings(READERS.load(launch.framework).settings, half),
            )
            break
    if request.dropout and launch.dropout:
        settings = tuple((f"{where}-dropout", "0") for where in ("attention", "hidden"))
        yield "no dropout", replace(request, dropout=False), settings


def _gain_of_changed_job(
    launch: Launch,
    now: Simulation,
    text: str,
    request: Request,
    settings: tuple[tuple[str, str], ...],
) -> Change | None:
    """Gain of the launch's strategy under a changed job; None if the job is not legal."""
    try:
        problem = problem_of(request)
        if next(iter(grid_violations(problem, launch.grid)), None) is not None:
            return None
        after = simulate_legal_strategy(request, problem, name=text, grid=launch.grid).prediction
    except ShardwrightError:
        return None
    current = {setting.name: setting.value for setting in launch.settings}
    added = tuple((name, value) for name, value in settings if current.get(name) != value)
    removed = tuple(
        (name, current[name])
        for name, _ in added
        if name in current and current[name] != "not said"
    )
    gain = 1 - after.step_time_s / now.prediction.step_time_s
    return Change(
        text=text,
        grid=launch.grid,
        step_time_s=after.step_time_s,
        gain=gain,
        added=added,
        removed=removed,
    )
