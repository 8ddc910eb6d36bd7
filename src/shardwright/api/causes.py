"""Find the number format or dropout of a launch that slows its step most and that no search option
changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from shardwright.api.problems import problem_of
from shardwright.api.simulated import simulated
from shardwright.dtype import Dtype
from shardwright.errors import ShardwrightError
from shardwright.launch_files.launch.launch import Launch
from shardwright.launch_files.launch.number_formats import half_settings
from shardwright.launch_files.megatron.argument_rules import REFUSED_LAYERS
from shardwright.model.ir.graph import Model
from shardwright.program.legal import grid_violations
from shardwright.search.advice import Change
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.facts import num_layers

LEAST_GAIN: Final = 0.01
"""Least share of a step that a cause is told for."""


def job_causes(launch: Launch, request: Request, now: Simulation | None) -> tuple[Change, ...]:
    """Changes of the launch's number format or dropout, simulated with its strategy, the largest
    gain first.

    Args:
        now: the launch as it is; None = it cannot run, and nothing is compared.
    """
    if now is None:
        return ()
    changes = [
        change
        for job in _jobs(launch, request)
        if (change := _changed(launch, now, *job)) is not None
    ]
    return tuple(
        sorted(
            (change for change in changes if change.gain > LEAST_GAIN),
            key=lambda change: -change.gain,
        )
    )


def is_repaired(launch: Launch, grid: Grid, model: Model) -> bool:
    """Return whether another strategy would let the framework start a launch that it refuses.

    Pipeline stages with equal numbers of layers repair one of the framework's rules. No strategy
    repairs the others.
    """
    layers = num_layers(model)
    return all(
        refusal.rule == REFUSED_LAYERS and layers % (grid.pp * grid.vpp) == 0
        for refusal in launch.refused
    )


def _jobs(
    launch: Launch, request: Request
) -> Iterator[tuple[str, Request, tuple[tuple[str, str], ...]]]:
    """(text of the change, request after it, settings that make it) of each change of the job."""
    if request.precision == Dtype.FP32.value:
        for half in (Dtype.BF16.value, Dtype.FP16.value):
            try:
                problem_of(replace(request, precision=half))
            except ShardwrightError:
                continue
            yield (
                f"precision {half} instead of fp32",
                replace(request, precision=half),
                half_settings(launch.framework, half),
            )
            break
    if request.dropout and launch.dropout:
        settings = tuple((f"{where}-dropout", "0") for where in ("attention", "hidden"))
        yield "no dropout", replace(request, dropout=False), settings


def _changed(
    launch: Launch,
    now: Simulation,
    text: str,
    request: Request,
    settings: tuple[tuple[str, str], ...],
) -> Change | None:
    """The simulated change of a launch's job; None where it is not legal."""
    try:
        problem = problem_of(request)
        if next(iter(grid_violations(problem, launch.grid)), None) is not None:
            return None
        after = simulated(request, problem, name=text, grid=launch.grid).prediction
    except ShardwrightError:
        return None
    given_settings = {setting.name: setting.value for setting in launch.settings}
    added = tuple((name, value) for name, value in settings if given_settings.get(name) != value)
    removed = tuple(
        (name, given_settings[name])
        for name, _ in added
        if name in given_settings and given_settings[name] != "not said"
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
