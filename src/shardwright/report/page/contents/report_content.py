"""The report as data: its heading and the contents of its views."""

from __future__ import annotations

from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.contents.answer_card import AnswerCard
from shardwright.report.page.contents.communication_groups import CommunicationGroups
from shardwright.report.page.contents.memory_by_stage import MemoryByStage
from shardwright.report.page.contents.pipeline_timeline import PipelineTimeline
from shardwright.report.page.contents.step_time_parts import StepTimeParts

REPORT_SCHEMA: Final = "shardwright.report"
REPORT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The contents of a report; a view is None where the source has no data for it.

    Args:
        kind: plan or simulation.
        title: one line.
        command: command that makes the page again.
        version: version of this package.
        answer: the strategy, its step and its proof.
        time: parts of the step.
        memory: memory of each stage, and changes that free some.
        timeline: tasks and idle time of each device.
        communication: groups of each device, with bytes and network tiers.
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
