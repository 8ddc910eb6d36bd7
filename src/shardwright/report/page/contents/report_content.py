"""The report as data: its heading and the contents of its views."""

from __future__ import annotations

from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.contents.answer_card import AnswerCard
from shardwright.report.page.contents.compared_strategies import ComparedStrategies
from shardwright.report.page.contents.launch_advice_steps import LaunchAdvice
from shardwright.report.page.contents.memory_by_stage import MemoryByStage
from shardwright.report.page.contents.prediction_accuracy import PredictionAccuracy
from shardwright.report.page.contents.searched_members import SearchedMembers
from shardwright.report.page.contents.serving_latencies import ServingLatencies
from shardwright.report.page.contents.step_time_parts import StepTimeParts

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
    members: SearchedMembers | None = None
    accuracy: PredictionAccuracy | None = None
    comparison: ComparedStrategies | None = None
    advice: LaunchAdvice | None = None
    serving: ServingLatencies | None = None
