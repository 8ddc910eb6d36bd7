"""The parts of an export: the plan with its grid, the shortfalls of the target, and the target's
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_by_stage import Mesh
from shardwright.strategy.plan.order import Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.printable import MAX_STRATEGY, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A plan to export, with its problem.

    Args:
        name: of the plan, in words.
        cluster: as asked.
        grid: that says the plan.
        table: the plan's own order, where it has no named one.
        meshes: where its stages have degrees of their own, runs of like ones; the grid is then one
            of stages as the first.
    """

    name: str
    cluster: str
    problem: Problem
    plan: Plan
    grid: Grid
    table: Table | None
    meshes: tuple[Mesh, ...] = ()

    @property
    def ranks(self) -> int:
        """Devices that work."""
        return sum(mesh.devices for mesh in self.meshes) or self.grid.devices

    @property
    def chunks(self) -> tuple[int, ...]:
        """Layers of every chunk of the pipeline, in order."""
        return tuple(
            sum(item.count for item in stage.items if not item.name)
            for stage in self.plan.lanes[0].stages
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A part of a plan that a target cannot express.

    Args:
        what: in words, with the numbers.
        instead: what the target does, if it may be exported all the same; empty = it may not.
        hint: what to plan with.
        order: of the axes in which the target numbers its ranks instead of the plan's; empty = in
            the plan's.
    """

    what: str
    instead: str = ""
    hint: str = ""
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """A file of an export.

    Args:
        name: inside the folder.
        text: of it.
        starts: every node runs it with bash to start its ranks. It is handed `NODES`, `GPUS` (ranks
            of this node) and `RENDEZVOUS` (arguments of torchrun by which nodes find each other),
            and its own arguments go to the training.
    """

    name: str
    text: str
    starts: bool = False


def one_line(text: str) -> str:
    """Words of others as one printable line, for a comment: nothing in it ends the line."""
    return printable(" ".join(text.split()), length=MAX_STRATEGY)


def in_quotes(line: str) -> str:
    """A line inside Python's triple quotes: nothing in it ends them or escapes anything."""
    return line.replace("\\", "/").replace('"', "'")


def title(given: Given) -> str:
    """The model, the cluster and the plan, as one line of a comment."""
    return one_line(f"{given.problem.model.name} on {given.cluster}: {given.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A target: one framework at one version.

    Args:
        name: word of the command line.
        version: of the framework, whose fields are written.
        summary: what is written, in a few words.
        shortfalls: all that the target cannot say of a plan.
        files: what the target reads, of a plan of which nothing, or only what may be lost, is
            lacking.
        stages_differ: it runs pipelines whose stages have degrees of their own (`Given.meshes`).
    """

    name: str
    version: str
    summary: str
    shortfalls: Callable[[Given], Iterator[Shortfall]]
    files: Callable[[Given], tuple[ExportFile, ...]]
    stages_differ: bool = False


def exported(exporter: Exporter, given: Given) -> tuple[ExportFile, ...]:
    """The files of a plan for a target, losses and all; none where it cannot be said at all."""
    return (
        () if any(not one.instead for one in exporter.shortfalls(given)) else exporter.files(given)
    )
