"""Tasks of a search over mixed clusters on an execution engine, and their shared inputs.

See docs/decisions/0016.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.search_effort_limits import USUAL, Effort
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.parallel.engine_protocol import Ask, Engine

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskInputs:
    """Inputs that all tasks of a search read.

    A task names its pipelines by their place in `pipeline_sets`.
    """

    problem: Problem
    pipeline_sets: tuple[PricedPipelines, ...]
    effort: Effort = USUAL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchTasks:
    """Runs the tasks of one search on an engine.

    One object serves a whole search, so that workers keep the inputs that they have.
    """

    engine: Engine
    inputs: TaskInputs

    @staticmethod
    def of(
        engine: Engine,
        problem: Problem,
        pipeline_sets: Sequence[PricedPipelines],
        *,
        effort: Effort = USUAL,
    ) -> SearchTasks:
        """Create the task runner for some sets of pipelines of a problem."""
        return SearchTasks(
            engine=engine,
            inputs=TaskInputs(problem=problem, pipeline_sets=tuple(pipeline_sets), effort=effort),
        )

    @property
    def effort(self) -> Effort:
        """Limits on the work of the search."""
        return self.inputs.effort

    def index_of(self, pipelines: PricedPipelines) -> int:
        """Index of a set of pipelines in `TaskInputs.pipeline_sets`."""
        return next(
            place for place, one in enumerate(self.inputs.pipeline_sets) if one is pipelines
        )

    def index_with_stage_costs(self, stage_costs: MixedStageCosts) -> int:
        """Index of the first set of pipelines with these stage costs."""
        return next(
            place
            for place, one in enumerate(self.inputs.pipeline_sets)
            if one.stage_costs is stage_costs
        )

    def flow(
        self,
        function: Callable[[TaskInputs, Task], Result],
        ask: Ask[Task],
        *,
        size: int,
        more: int = 0,
    ) -> Iterator[Result]:
        """Yield ``function(inputs, task)`` for one task after another, as `Engine.flow`."""
        return self.engine.flow(function, ask, shared=self.inputs, size=size, more=more)

    def map(
        self,
        function: Callable[[TaskInputs, Task], Result],
        tasks: Sequence[Task],
        *,
        more: int = 0,
    ) -> list[Result]:
        """Return ``function(inputs, task)`` of every task, in task order, as `Engine.map`."""
        return self.engine.map(function, tasks, shared=self.inputs, more=more)
