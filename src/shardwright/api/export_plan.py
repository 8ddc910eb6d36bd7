"""A plan in the form that a framework reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardwright.api.stored_answers import Stored
from shardwright.errors import OutputError, StrategyError, UsageError, nearest
from shardwright.frameworks.export.exporter import Exporter, ExportFile, PlanToExport, Shortfall
from shardwright.frameworks.export.hosts import HostEntry
from shardwright.frameworks.export.launchers.launcher import Launcher, PlacedExport
from shardwright.frameworks.export.launchers.registry import LAUNCHERS
from shardwright.frameworks.export.placement import RankPlacement, placement_files, placement_of
from shardwright.frameworks.registry import TARGETS
from shardwright.lazy_dataclass import dataclass
from shardwright.strategy.grid.grid_by_stage import Mesh, meshes_of
from shardwright.strategy.grid.pytorch_form import grid_form

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An export.

    Args:
        files: that the target reads.
        beside: where its ranks run, and what launches them.
        losses: what is otherwise than planned.
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
    hosts: Sequence[HostEntry] = (),
    image: str = "",
) -> Export:
    """A plan as `target` reads it, with a map of its ranks.

    Args:
        target: one of `TARGETS`.
        allow_lossy: export what the target says otherwise than the plan, and list it.
        launchers: some of `LAUNCHERS`, of each of which a file is written.
        hosts: of the cluster's nodes, in order; none = placeholders.
        image: of containers, for the launchers that have them.

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
    given = given_of(stored, meshes=exporter.stages_differ)
    if given is None:
        what = (
            "grids, or pipelines whose stages are each a grid"
            if exporter.stages_differ
            else "grids"
        )
        raise StrategyError(
            f"no grid says this plan, and {target} runs {what}",
            hint="plan without --space joint or mixed",
            rule="export.grid",
        )
    found = tuple(exporter.shortfalls(given))
    refused = [one for one in found if not one.instead]
    if refused:
        hints = [one.hint for one in refused if one.hint]
        raise StrategyError(
            f"{target} cannot say: {'; '.join(o.what for o in refused)}",
            hint="; ".join(hints),
            rule="export.refused",
        )
    if found and not allow_lossy:
        said = "; ".join(f"{one.what} (instead: {one.instead})" for one in found)
        raise StrategyError(
            f"{target} would do otherwise: {said}",
            hint="--allow-lossy exports it all the same",
            rule="export.lossy",
        )
    files = exporter.files(given)
    order = next((one.order for one in found if one.order), ())
    placement = placement_of(given, order=order, hosts=hosts)
    beside = placement_files(placement, plan=given.name, cluster=given.cluster)
    launched = tuple(
        _launched(LAUNCHERS[name], given, placement, files, image)
        for name in dict.fromkeys(launchers)
    )
    return Export(target=exporter, files=files, beside=(*beside, *launched), losses=found)


def _launched(
    launcher: Launcher,
    given: PlanToExport,
    placement: RankPlacement,
    files: tuple[ExportFile, ...],
    image: str,
) -> ExportFile:
    start = next((file for file in files if file.starts), None)
    if start is None:
        raise StrategyError(
            f"{launcher.name} starts a script, and this target has none",
            hint="drop --launcher",
            rule="export.launch",
        )
    launch = PlacedExport(export=given, placement=placement, files=files, start=start, image=image)
    why = launcher.refused(launch)
    if why:
        raise StrategyError(
            f"{launcher.name} cannot start this plan: {why}",
            hint="another --launcher",
            rule="export.launch",
        )
    return launcher.file(launch)


def given_of(stored: Stored, *, meshes: bool) -> PlanToExport | None:
    """A plan as it is exported; None where neither a grid says it nor, if these may, meshes of
    stages do.
    """
    form, table = grid_form(stored.plan, model=stored.problem.model) or (None, None)
    of_stages: tuple[Mesh, ...] = ()
    # Stages of a grid that lie on devices of several kinds are meshes, too.
    if meshes and (
        form is None
        or len({group.kind.accelerator.name for group in stored.problem.cluster.groups}) > 1
    ):
        form, of_stages = meshes_of(stored.plan, model=stored.problem.model) or (form, ())
    if form is None:
        return None
    return PlanToExport(
        name=stored.name,
        cluster=stored.cluster,
        problem=stored.problem,
        plan=stored.plan,
        grid=form,
        table=table,
        meshes=of_stages,
    )


def write_export(export: Export, folder: Path) -> tuple[Path, ...]:
    """Write the files of an export into a folder, which is made where it is not.

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
