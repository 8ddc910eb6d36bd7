"""What an export is made of: a plan that a grid says, what a target cannot say of it, and the files that the target reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from shardwright.program.problem import Problem
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.meshes import Mesh
from shardwright.strategy.plan.order import Table
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What is exported.

    Args:
        name: of the plan, in words. cluster: as asked. grid: that says the plan. table: the plan's own order, where it has no named one.
        meshes: where its stages have degrees of their own, runs of like ones; the grid is then one of stages as the first.
    """

    name: str
    cluster: str
    problem: Problem
    plan: Plan
    grid: Grid
    table: Table | None
    meshes: tuple[Mesh, ...] = ()

    @property
    def chunks(self) -> tuple[int, ...]:
        """Layers of every chunk of the pipeline, in order."""
        return tuple(sum(item.count for item in stage.items if not item.name) for stage in self.plan.lanes[0].stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What a target cannot say of a plan.

    Args:
        what: in words, with the numbers. instead: what the target does, if it may be exported all the same; empty = it may not.
        hint: what to plan with.
    """

    what: str
    instead: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """A file of an export: its name inside the folder, and its text."""

    name: str
    text: str


class Exporter(Protocol):
    """A target: one framework at one version."""

    @property
    def name(self) -> str:
        """Word of the command line."""

    @property
    def version(self) -> str:
        """Of the framework, whose fields are written."""

    @property
    def summary(self) -> str:
        """What is written, in a few words."""

    @property
    def stages_differ(self) -> bool:
        """It runs pipelines whose stages have degrees of their own (`Given.meshes`)."""

    def shortfalls(self, given: Given) -> Iterator[Shortfall]:
        """All that the target cannot say of the plan."""

    def files(self, given: Given) -> tuple[ExportFile, ...]:
        """What the target reads, of a plan of which nothing, or only what may be lost, is lacking."""
