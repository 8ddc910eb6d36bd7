"""Export a plan as a framework's configuration files, with a map of its ranks and launchers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.errors import OutputError, StrategyError, UsageError, nearest
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    ExportFile,
    PlanToExport,
    Shortfall,
)
from shardwright.frameworks.export.launchers.launcher_type_and_shared_helpers import (
    Launcher,
    PlacedExport,
)
from shardwright.frameworks.export.launchers.registry import LAUNCHERS
from shardwright.frameworks.export.parse_host_file import HostEntry
from shardwright.frameworks.export.place_ranks_and_write_rank_map import (
    RankPlacement,
    placement_files,
    placement_of,
)
from shardwright.frameworks.registry import TARGETS
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.grid.group_plan_stages_by_degrees import Mesh, meshes_of
from shardwright.strategy.grid.plan_to_grid_and_order_table import grid_form

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The files of an exported plan, its rank map and launch files, and differences from the plan.

    Args:
        files: files that the target reads.
        beside: the map of ranks, and the launch files.
        losses: differences from the plan.
    """

    target: Exporter
    files: tuple[ExportFile, ...]
    beside: tuple[ExportFile, ...]
    losses: tuple[Shortfall, ...]


def export_plan(
    stored: PlanOfProblem,
    *,
    target: str,
    allow_lossy: bool = False,
    launchers: Sequence[str] = (),
    hosts: Sequence[HostEntry] = (),
    image: str = "",
) -> Export:
    """Export a plan's files for `target`; StrategyError if refused, or lossy without `allow_lossy`.

    Args:
        target: one of `TARGETS`.
        allow_lossy: export with differences from the plan, and list them.
        launchers: names in `LAUNCHERS`; a launch file is written for each.
        hosts: hosts of the cluster's nodes, in order; none = placeholders.
        image: container image, for launchers with containers.

    Raises:
        StrategyError: there is no such target (``export.target``) or launcher
            (``export.launcher``); no grid says the plan (``export.grid``); the target cannot say
            something of it (``export.refused``), or says it otherwise and that is not allowed
            (``export.lossy``): all of it is named; there are too many ranks for a map
            (``export.ranks``); or a launcher cannot start it (``export.launch``).
        UsageError: `image` is no name of an image. DataError: `hosts` are not as many as the plan's
        nodes, or too small.
    """
    exporter = TARGETS.load(target)
    unknown = next((name for name in launchers if name not in LAUNCHERS), None)
    if unknown is not None:
        raise StrategyError(
            f"unknown launcher {unknown[:40]!r}",
            hint=nearest(unknown[:40], LAUNCHERS),
            rule="export.launcher",
        )
    if image and not _IMAGE.fullmatch(image):
        raise UsageError(f"{image[:60]!r} is no name of an image", hint="such as registry/name:tag")
    exportable = exportable_plan(stored, meshes=exporter.stages_differ)
    if exportable is None:
        runnable = (
            "grids, or pipelines whose stages are each a grid"
            if exporter.stages_differ
            else "grids"
        )
        raise StrategyError(
            f"no grid says this plan, and {target} runs {runnable}",
            hint="plan without --space joint or mixed",
            rule="export.grid",
        )
    shortfalls = tuple(exporter.shortfalls(exportable))
    refused = [shortfall for shortfall in shortfalls if not shortfall.instead]
    if refused:
        hints = [shortfall.hint for shortfall in refused if shortfall.hint]
        raise StrategyError(
            f"{target} cannot say: {'; '.join(shortfall.what for shortfall in refused)}",
            hint="; ".join(hints),
            rule="export.refused",
        )
    if shortfalls and not allow_lossy:
        differences = "; ".join(
            f"{shortfall.what} (instead: {shortfall.instead})" for shortfall in shortfalls
        )
        raise StrategyError(
            f"{target} would do otherwise: {differences}",
            hint="--allow-lossy exports it all the same",
            rule="export.lossy",
        )
    files = exporter.files(exportable)
    order = next((shortfall.order for shortfall in shortfalls if shortfall.order), ())
    placement = placement_of(exportable, order=order, hosts=hosts)
    beside = placement_files(placement, plan=exportable.name, cluster=exportable.cluster)
    launched = tuple(
        _launch_file(LAUNCHERS[name], exportable, placement, files, image)
        for name in dict.fromkeys(launchers)
    )
    return Export(target=exporter, files=files, beside=(*beside, *launched), losses=shortfalls)


def _launch_file(
    launcher: Launcher,
    exportable: PlanToExport,
    placement: RankPlacement,
    files: tuple[ExportFile, ...],
    image: str,
) -> ExportFile:
    """The file that starts an exported plan by `launcher`; StrategyError if it cannot start it."""
    start = next((file for file in files if file.starts), None)
    if start is None:
        raise StrategyError(
            f"{launcher.name} starts a script, and this target has none",
            hint="drop --launcher",
            rule="export.launch",
        )
    launch = PlacedExport(
        export=exportable, placement=placement, files=files, start=start, image=image
    )
    refusal = launcher.refused(launch)
    if refusal:
        raise StrategyError(
            f"{launcher.name} cannot start this plan: {refusal}",
            hint="another --launcher",
            rule="export.launch",
        )
    return launcher.file(launch)


def exportable_plan(stored: PlanOfProblem, *, meshes: bool) -> PlanToExport | None:
    """The plan as a grid, or as meshes of stages if `meshes`; None if neither equals it."""
    grid, table = grid_form(stored.plan, model=stored.problem.model) or (None, None)
    stage_meshes: tuple[Mesh, ...] = ()
    # Stages of a grid that lie on devices of several kinds are meshes, too.
    if meshes and (
        grid is None
        or len({group.kind.accelerator.name for group in stored.problem.cluster.groups}) > 1
    ):
        grid, stage_meshes = meshes_of(stored.plan, model=stored.problem.model) or (grid, ())
    if grid is None:
        return None
    return PlanToExport(
        name=stored.name,
        cluster=stored.cluster,
        problem=stored.problem,
        plan=stored.plan,
        grid=grid,
        table=table,
        meshes=stage_meshes,
    )


def write_export(export: Export, folder: Path) -> tuple[Path, ...]:
    """Write the files of an export into a folder, made if missing; return their paths.

    Raises:
        OutputError: a file cannot be written.
    """
    files = (*export.files, *export.beside)
    paths = tuple(folder / file.name for file in files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, file in zip(paths, files, strict=True):
            path.parent.mkdir(exist_ok=True)
            path.write_text(file.text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}", hint="another -o") from error
    return paths
