"""The report as data: its heading and the contents of its views."""

from __future__ import annotations

from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.communication_groups import CommunicationGroups
from shardwright.report.page.view_data_types.compared_strategies import ComparedStrategies
from shardwright.report.page.view_data_types.launch_advice_steps import LaunchAdvice
from shardwright.report.page.view_data_types.memory_by_stage import MemoryByStage
from shardwright.report.page.view_data_types.pipeline_timeline import PipelineTimeline
from shardwright.report.page.view_data_types.predicted_step_cost_memory_proof import AnswerCard
from shardwright.report.page.view_data_types.published_run_errors_interval_and_sources import (
    PredictionAccuracy,
)
from shardwright.report.page.view_data_types.searched_members import SearchedMembers
from shardwright.report.page.view_data_types.serving_latencies import ServingLatencies
from shardwright.report.page.view_data_types.step_time_parts import StepTimeParts
from shardwright.report.page.view_data_types.what_if_axes import WhatIfAxes

REPORT_SCHEMA: Final = "shardwright.report"
REPORT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The contents of a report; a view is None where the source has no data for it.

    Args:
        kind: plan, simulation, comparison, advice or serving.
        title: one line.
        command: command that makes the page again.
        version: version of this package.
        answer: the strategy, its step and its proof.
        time: parts of the step.
        memory: memory of each stage, and changes that free some.
        timeline: tasks and idle time of each device.
        communication: groups of each device, with bytes and network tiers.
        what_if: best plans of changed requests; None if they were not searched.
        what_if_command: command that makes the page with them; empty if they are there, or the
            request's search takes too long to repeat.
        members: strategies of the searched space.
        accuracy: errors of predictions of published runs, interval, doubts and sources.
        comparison: strategies side by side.
        advice: a launch and what would make it faster.
        serving: latencies and throughput of a deployment.
    """

    kind: str
    title: str
    command: str
    version: str
    answer: AnswerCard | None = None
    time: StepTimeParts | None = None
    memory: MemoryByStage | None = None
    timeline: PipelineTimeline | None = None
    communication: CommunicationGroups | None = None
    what_if: WhatIfAxes | None = None
    members: SearchedMembers | None = None
    accuracy: PredictionAccuracy | None = None
    comparison: ComparedStrategies | None = None
    advice: LaunchAdvice | None = None
    serving: ServingLatencies | None = None
    what_if_command: str = ""
