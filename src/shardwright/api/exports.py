"""Export of a plan to a framework's files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardwright.api.stored import Stored
from shardwright.errors import OutputError, StrategyError, UsageError, nearest
from shardwright.export.exporter import Exporter, ExportFile, Given, Shortfall
from shardwright.export.hosts import Host
from shardwright.export.launchers.launcher import Launch, Launcher
from shardwright.export.launchers.registry import LAUNCHERS
from shardwright.export.placement import Placement, placement_files, placement_of
from shardwright.export.registry import TARGETS
from shardwright.lazy_dataclass import dataclass
from shardwright.strategy.grid.form import grid_form
from shardwright.strategy.grid.meshes import Mesh, meshes_of

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Files of an exported plan.

    Args:
        files: files that the target reads.
        beside: the map of ranks, and files of launchers.
        losses: settings that differ from the plan.
    """

    target: Exporter
    files: tuple[ExportFile, ...]
    beside: tuple[ExportFile, ...]
    losses: tuple[Shortfall, ...]


def export_plan(
    stored: Stored,
    *,
    target: str,
    allow_lossy: bool = False,
    launchers: Sequence[str] = (),
    hosts: Sequence[Host] = (),
    image: str = "",
) -> Export:
    """A plan as files of `target`, with a map of its ranks.

    Args:
        target: one of `TARGETS`.
        allow_lossy: export although the target differs from the plan in some settings, and list
            them.
        launchers: some of `LAUNCHERS`; a file is written for each.
        hosts: hosts of the cluster's nodes, in order; none = placeholders.
        image: container image, for the launchers that have containers.

    Raises:
        StrategyError: unknown target (``export.target``) or launcher (``export.launcher``); no grid
            equals the plan (``export.grid``); the target lacks features of the plan
            (``export.refused``), or differs in some settings and that is not allowed
            (``export.lossy``), all are listed; there are too many ranks for a map
                (``export.ranks``);
            or a launcher cannot start it (``export.launch``).
        UsageError: `image` is no name of an image.
        DataError: `hosts` do not match the plan's nodes in number or size.
    """
    if target not in TARGETS:
        raise StrategyError(
            f"unknown target {target[:40]!r}",
            hint=nearest(target[:40], TARGETS),
            rule="export.target",
        )
    unknown = next((name for name in launchers if name not in LAUNCHERS), None)
    if unknown is not None:
        raise StrategyError(
            f"unknown launcher {unknown[:40]!r}",
            hint=nearest(unknown[:40], LAUNCHERS),
            rule="export.launcher",
        )
    if image and not _IMAGE.fullmatch(image):
        raise UsageError(f"{image[:60]!r} is no name of an image", hint="such as registry/name:tag")
    exporter = TARGETS[target]
    exportable = given_of(stored, meshes=exporter.stages_differ)
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
        _launched(LAUNCHERS[name], exportable, placement, files, image)
        for name in dict.fromkeys(launchers)
    )
    return Export(target=exporter, files=files, beside=(*beside, *launched), losses=shortfalls)


def _launched(
    launcher: Launcher,
    given: Given,
    placement: Placement,
    files: tuple[ExportFile, ...],
    image: str,
) -> ExportFile:
    """A launcher's file that starts an exported plan."""
    start = next((file for file in files if file.starts), None)
    if start is None:
        raise StrategyError(
            f"{launcher.name} starts a script, and this target has none",
            hint="drop --launcher",
            rule="export.launch",
        )
    launch = Launch(given=given, placement=placement, files=files, start=start, image=image)
    why = launcher.refused(launch)
    if why:
        raise StrategyError(
            f"{launcher.name} cannot start this plan: {why}",
            hint="another --launcher",
            rule="export.launch",
        )
    return launcher.file(launch)


def given_of(stored: Stored, *, meshes: bool) -> Given | None:
    """A stored plan with its grid, or if `meshes` its meshes of stages, as exporters take it; None
    where it has neither.
    """
    form, table = grid_form(stored.plan, model=stored.problem.model) or (None, None)
    stage_meshes: tuple[Mesh, ...] = ()
    # Stages of a grid that lie on devices of several kinds are meshes, too.
    if meshes and (
        form is None
        or len({group.kind.accelerator.name for group in stored.problem.cluster.groups}) > 1
    ):
        form, stage_meshes = meshes_of(stored.plan, model=stored.problem.model) or (form, ())
    if form is None:
        return None
    return Given(
        name=stored.name,
        cluster=stored.cluster,
        problem=stored.problem,
        plan=stored.plan,
        grid=form,
        table=table,
        meshes=stage_meshes,
    )


def write_export(export: Export, folder: Path) -> tuple[Path, ...]:
    """Write the files of an export into a folder, which is created if needed; returns their
    paths.

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
