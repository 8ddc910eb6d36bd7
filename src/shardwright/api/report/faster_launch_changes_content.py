"""Contents of the report's view of advice on a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardwright.api.report.ratio_or_zero import ratio
from shardwright.files.comparison_advice_serving_document_classes import (
    BestChange,
    StoredAdvice,
    StoredChange,
    StoredSetting,
)
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.report.page.view_data_types.launch_advice_steps import (
    BrokenLaunchRule,
    DoubtfulSetting,
    LaunchAdvice,
    LaunchChange,
    LaunchLimit,
)
from shardwright.report.screens.step_time_table import part_name

DOUBTFUL: Final = (Verdict.UNKNOWN, Verdict.DIFFERENT, Verdict.IDLE)
"""Verdicts on settings that a reader should look at."""


def launch_advice(saved: StoredAdvice) -> LaunchAdvice:
    """The launch, the changes with their steps, and the best strategy."""
    now = saved.prediction
    step_s = None if now is None else now.step_time_s
    changes: tuple[StoredChange | BestChange, ...] = (*saved.changes, *saved.causes)
    steps = [change.step_time_s for change in changes]
    steps += [saved.best.step_time_s] if saved.best else []
    longest = max([step_s or 0.0, *steps], default=0.0)
    return LaunchAdvice(
        model="" if now is None else now.model.name,
        cluster="" if now is None else now.cluster,
        framework=saved.framework,
        runtime=saved.runtime,
        strategy=saved.strategy,
        step_s=step_s,
        length=None if step_s is None else ratio(step_s, longest),
        reserved_bytes=None if now is None else now.reserved_bytes,
        capacity_bytes=None if now is None else now.capacity_bytes,
        fits=None if now is None else now.fits,
        broken=tuple(
            BrokenLaunchRule(rule=one.rule, message=one.message, hint=one.hint)
            for one in saved.broken
        ),
        limits=tuple(
            LaunchLimit(
                name=part_name(one.part),
                seconds=one.seconds,
                share=ratio(one.seconds, step_s or 0.0),
            )
            for one in saved.limited_by
        ),
        changes=tuple(_change(one, step_s, longest) for one in saved.changes),
        causes=tuple(_change(one, step_s, longest) for one in saved.causes),
        best=None if saved.best is None else _change(saved.best, step_s, longest),
        proven=None if saved.best is None else saved.best.certificate.optimal,
        considered=saved.considered,
        doubtful=tuple(
            DoubtfulSetting(name=one.name, value=one.value, verdict=one.verdict, means=one.means)
            for one in saved.settings
            if one.verdict in DOUBTFUL
        ),
    )


def _change(
    change: StoredChange | BestChange, step_s: float | None, longest_s: float
) -> LaunchChange:
    """A change with its gain, and its settings as text."""
    return LaunchChange(
        name=change.change,
        strategy=change.strategy,
        step_s=change.step_time_s,
        gain=None if step_s is None else ratio(step_s - change.step_time_s, step_s),
        length=ratio(change.step_time_s, longest_s),
        remove=_settings(change.remove),
        add=_settings(change.add),
    )


def _settings(settings: Sequence[StoredSetting]) -> str:
    """Settings as ``name=value`` with commas between; ``-`` if there is none."""
    return ", ".join(f"{one.name}={one.value}" for one in settings) or "-"
