"""Contents of the report's view of accuracy: published runs, interval, doubts and sources."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1
from statistics import median
from typing import Final

from shardwright.api.report.nearest_published_runs import RunTraits, framework_of, nearest_runs
from shardwright.api.report.predicted_step_cost_memory_proof_content import INTERVAL_SHARE
from shardwright.api.report.ratio_or_zero import ratio
from shardwright.api.request_to_problem import problem_of
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.report.page.view_data_types.line_chart_data import ChartAxis, round_ticks_of_ratios
from shardwright.report.page.view_data_types.published_run_errors_interval_and_sources import (
    IntervalPart,
    NarrowingMeasurement,
    NearbyRun,
    PredictionAccuracy,
    RunErrors,
    SourceRow,
)
from shardwright.report.page.view_data_types.scatter_chart_data import (
    ScatterChart,
    ScatterGroup,
    ScatterPoints,
)
from shardwright.simulator.prediction import Doubt
from shardwright.simulator.step_time_interval import COEFFICIENTS, interval
from shardwright.validation.training.shipped_predictions_of_published_runs import (
    PredictedRun,
    predictions_of_published_runs,
)

NEAREST: Final = 20
"""Number of published runs that are listed as most like this one."""
GROUPS: Final = (
    ScatterGroup(name="published run", series=7, solid=False),
    ScatterGroup(name="published run most like this one", series=0, solid=True),
)
_CALIBRATE: Final = "shardwright calibrate --check -o node.json"
_COLLECTIVES: Final = "shardwright calibrate --collectives-only -o network.json"
_OWN_RUNS: Final = "shardwright validate --template"
MEASUREMENTS: Final[dict[str, str]] = {
    "assumed rates": _CALIBRATE,
    "exposed communication": _COLLECTIVES,
    "experts": _OWN_RUNS,
    "eager kernels": _CALIBRATE,
    "tables of another device": _CALIBRATE,
    "device without runs": _CALIBRATE,
    "framework without runs": _OWN_RUNS,
    "options without runs": _OWN_RUNS,
    "device new to the framework": _OWN_RUNS,
    "memory nearly full": _OWN_RUNS,
}
"""Command that measures what a doubt is about: rates of a machine, of its network, or own runs."""
SHARED: Final = "any"
"""Doubt that all predictions have."""
PART_NAMES: Final = {SHARED: "errors that all predictions have"}
"""Words for doubts whose name alone does not say what they are."""
_LEAST_WIDTH: Final = 0.005
"""Least half-width of a doubt, as a fraction of the step, whose measurement is proposed."""


def prediction_accuracy(saved: StoredSimulation) -> PredictionAccuracy:
    """Errors of predictions of published runs, and doubts and sources of this prediction."""
    prediction = saved.prediction
    runs = predictions_of_published_runs()
    nearest = nearest_runs(runs, _traits(saved), count=NEAREST)
    framework = framework_of(saved.runtime.split()[0])
    same = [run for run in runs if framework_of(run.runtime) == framework]
    step_s = prediction.step_time_s
    return PredictionAccuracy(
        step_s=step_s,
        interval_s=prediction.interval_s,
        interval_share=INTERVAL_SHARE,
        half_width=ratio(prediction.interval_s[1] - step_s, step_s),
        chart=_chart(runs, nearest),
        nearest=tuple(map(_nearby, nearest)),
        errors=(
            _errors("most like this one", nearest),
            *([_errors(framework, same)] if same else []),
            _errors("all", runs),
        ),
        parts=_parts(prediction.doubts),
        narrowing=_narrowing(step_s, prediction.doubts),
        sources=tuple(
            SourceRow(
                quantity=source.quantity,
                value=source.value,
                evidence=source.origin.evidence.value,
                reference=source.origin.reference,
            )
            for source in saved.sources
        ),
    )


def _traits(saved: StoredSimulation) -> RunTraits:
    """Traits of a stored plan with which published runs are compared."""
    problem, grid = problem_of(saved.request), saved.grid
    return RunTraits(
        parameters=saved.prediction.model.parameters,
        accelerators=tuple(group.kind.accelerator.name for group in problem.cluster.groups),
        devices=saved.prediction.devices,
        runtime=saved.runtime.split()[0],
        degrees=() if grid is None else (grid.tp, grid.cp, grid.pp, grid.ep),
        sequence_tokens=saved.request.seq_len,
    )


def _nearby(run: PredictedRun) -> NearbyRun:
    """Row of a published run in the table of similar runs: measured and predicted step, error."""
    degrees = (("tp", run.tp), ("cp", run.cp), ("pp", run.pp), ("ep", run.ep))
    return NearbyRun(
        model=run.model,
        accelerator=run.accelerator,
        devices=run.devices,
        runtime=run.runtime,
        strategy=" ".join(f"{name}{degree}" for name, degree in degrees if degree > 1),
        sequence_tokens=run.sequence_tokens,
        measured_s=run.measured_s,
        predicted_s=run.predicted_s,
        error=run.error,
        inside=run.inside,
        reference=run.reference,
    )


def _errors(name: str, runs: Sequence[PredictedRun]) -> RunErrors:
    """Median absolute error of at least one run, and share of the runs inside their intervals."""
    return RunErrors(
        name=name,
        runs=len(runs),
        median=median(abs(run.error) for run in runs),
        inside=sum(run.inside for run in runs) / len(runs),
    )


def _chart(runs: Sequence[PredictedRun], nearest: Sequence[PredictedRun]) -> ScatterChart:
    """Measured against predicted steps; the line is where both are equal."""
    ordered = [*(run for run in runs if run not in nearest), *nearest]
    measured = tuple(run.measured_s for run in ordered)
    predicted = tuple(run.predicted_s for run in ordered)
    ticks = round_ticks_of_ratios((*measured, *predicted))
    return ScatterChart(
        x=ChartAxis(name="measured step", form="seconds", ticks=ticks, logarithmic=True),
        y=ChartAxis(name="predicted step", form="seconds", ticks=ticks, logarithmic=True),
        groups=GROUPS,
        points=ScatterPoints(
            x=measured,
            y=predicted,
            label=tuple(
                f"{run.model} on {run.devices:,} {run.accelerator}, {run.runtime}"
                for run in ordered
            ),
            group=tuple(int(place >= len(runs) - len(nearest)) for place in range(len(ordered))),
        ),
        line=((ticks[0], ticks[0]), (ticks[-1], ticks[-1])),
    )


def _parts(doubts: Sequence[Doubt]) -> tuple[IntervalPart, ...]:
    """Relative half-width that each doubt alone gives the interval, the largest first."""
    parts = [
        IntervalPart(
            name=PART_NAMES.get(doubt.name, doubt.name),
            share=doubt.share,
            half_width=expm1(COEFFICIENTS[doubt.name] * doubt.share),
        )
        for doubt in doubts
    ]
    return tuple(sorted(parts, key=lambda part: -part.half_width))


def _narrowing(step_s: float, doubts: tuple[Doubt, ...]) -> NarrowingMeasurement:
    """Measurement that narrows the interval most, and the interval left; own runs if none does."""
    widths = {doubt.name: COEFFICIENTS[doubt.name] * doubt.share for doubt in doubts}
    own = {name: width for name, width in widths.items() if name != SHARED}
    widest = max(own, key=lambda name: own[name], default=SHARED)
    if own.get(widest, 0.0) < _LEAST_WIDTH:
        return NarrowingMeasurement(part=PART_NAMES[SHARED], command=_OWN_RUNS, interval_s=None)
    others = tuple(doubt for doubt in doubts if doubt.name != widest)
    return NarrowingMeasurement(
        part=PART_NAMES.get(widest, widest),
        command=MEASUREMENTS[widest],
        interval_s=interval(step_s, others),
    )
