"""Contents of the report's view of a step's time."""

from __future__ import annotations

from shardwright.report.page.contents.step_time_parts import StepTimePart, StepTimeParts
from shardwright.report.screens.step_time_table import part_name
from shardwright.simulator.prediction import Prediction


def step_time_parts(prediction: Prediction) -> StepTimeParts:
    """Parts of the critical device's step that take any time, the largest first."""
    step_s = prediction.step_time_s
    return StepTimeParts(
        step_s=step_s,
        parts=tuple(
            StepTimePart(name=part_name(name), seconds=seconds, share=seconds / step_s)
            for name, seconds in sorted(prediction.breakdown_s, key=lambda part: -part[1])
            if seconds
        ),
    )
