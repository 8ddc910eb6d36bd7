"""Types of an export: the plan to export, shortfalls of a target, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.strategy.grid.group_plan_stages_by_degrees import Mesh
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.pipeline_order import Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.replace_unprintable_characters import MAX_STRATEGY, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanToExport:
    """A plan to export, with its problem and its grid.

    Args:
        name: the plan's name, in words.
        cluster: the cluster, as in the request.
        grid: the grid form of the plan.
        table: the plan's pipeline order, where it is not a named schedule.
        meshes: groups of stages with equal degrees, where stages differ; the grid then has the
            degrees of the first stage.
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
        """Number of devices that the plan uses."""
        return sum(mesh.devices for mesh in self.meshes) or self.grid.devices

    @property
    def chunks(self) -> tuple[int, ...]:
        """Number of layers of every chunk of the pipeline (first lane), in order."""
        return tuple(
            sum(item.count for item in stage.items if not item.name)
            for stage in self.plan.lanes[0].stages
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A part of a plan that an export target cannot express.

    Args:
        what: the part, in words, with the numbers.
        instead: behaviour of the target in its place, if the plan may still be exported; empty = it
            may not.
        hint: options to plan with instead.
        order: order of the axes in which the target numbers ranks; empty = the plan's order.
    """

    what: str
    instead: str = ""
    hint: str = ""
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """A file of an export: name, text, and whether nodes run it to start their ranks.

    Args:
        name: file name inside the export's folder.
        text: contents.
        starts: every node runs the file with bash to start its ranks. The environment has `NODES`,
            `GPUS` (ranks of this node) and `RENDEZVOUS` (arguments of torchrun by which nodes find
            each other). The file's arguments go to the training program.
    """

    name: str
    text: str
    starts: bool = False


def one_line(text: str) -> str:
    """Text from the user as one printable line for a comment, without line breaks."""
    return printable(" ".join(text.split()), length=MAX_STRATEGY)


def in_quotes(line: str) -> str:
    """Replace backslashes and double quotes of a line, for use inside Python's triple quotes."""
    return line.replace("\\", "/").replace('"', "'")


def title(export: PlanToExport) -> str:
    """Model, cluster and name of a plan as one line for a comment."""
    return one_line(f"{export.problem.model.name} on {export.cluster}: {export.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """An export target: one framework at one version, with functions that write its files.

    Args:
        name: name on the command line.
        version: version of the framework whose settings are written.
        summary: the files that are written, in a few words.
        shortfalls: function that yields all parts of a plan that the target cannot express.
        files: function that writes the target's files for a plan without fatal shortfalls.
        stages_differ: the target runs pipelines whose stages have different degrees
            (`PlanToExport.meshes`).
    """

    name: str
    version: str
    summary: str
    shortfalls: Callable[[PlanToExport], Iterator[Shortfall]]
    files: Callable[[PlanToExport], tuple[ExportFile, ...]]
    stages_differ: bool = False


def export_files(exporter: Exporter, export: PlanToExport) -> tuple[ExportFile, ...]:
    """Files of a plan for a target, if each shortfall has a substitute (`instead`); else empty."""
    return (
        ()
        if any(not shortfall.instead for shortfall in exporter.shortfalls(export))
        else exporter.files(export)
    )
