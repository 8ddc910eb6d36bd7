"""A plan in the form that a framework reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardwright.api.stored import Stored
from shardwright.errors import OutputError, StrategyError, nearest
from shardwright.export.exporter import Exporter, ExportFile, Given, Shortfall
from shardwright.export.registry import TARGETS
from shardwright.strategy.grid.form import grid_form
from shardwright.strategy.grid.meshes import Mesh, meshes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An export: its target, the files, and what is lost of the plan."""

    target: Exporter
    files: tuple[ExportFile, ...]
    losses: tuple[Shortfall, ...]


def export_plan(stored: Stored, *, target: str, allow_lossy: bool = False) -> Export:
    """A plan as `target` reads it.

    Args:
        target: one of `TARGETS`. allow_lossy: export what the target says otherwise than the plan, and list it.

    Raises:
        StrategyError: there is no such target (``export.target``); no grid says the plan (``export.grid``); the target cannot say something
            of it (``export.refused``), or says it otherwise and that is not allowed (``export.lossy``): all of it is named.
    """
    if target not in TARGETS:
        raise StrategyError(f"unknown target {target[:40]!r}", hint=nearest(target[:40], TARGETS), rule="export.target")
    exporter = TARGETS[target]
    given = _given(stored, meshes=exporter.stages_differ)
    if given is None:
        what = "grids, or pipelines whose stages are each a grid" if exporter.stages_differ else "grids"
        raise StrategyError(
            f"no grid says this plan, and {target} runs {what}", hint="plan without --space joint or mixed", rule="export.grid"
        )
    found = tuple(exporter.shortfalls(given))
    refused = [one for one in found if not one.instead]
    if refused:
        hints = [one.hint for one in refused if one.hint]
        raise StrategyError(f"{target} cannot say: {'; '.join(o.what for o in refused)}", hint="; ".join(hints), rule="export.refused")
    if found and not allow_lossy:
        said = "; ".join(f"{one.what} (instead: {one.instead})" for one in found)
        raise StrategyError(f"{target} would do otherwise: {said}", hint="--allow-lossy exports it all the same", rule="export.lossy")
    return Export(target=exporter, files=exporter.files(given), losses=found)


def exported(exporter: Exporter, given: Given) -> tuple[ExportFile, ...]:
    """The files of a plan for a target, losses and all; none where it cannot be said at all."""
    return () if any(not one.instead for one in exporter.shortfalls(given)) else exporter.files(given)


def _given(stored: Stored, *, meshes: bool) -> Given | None:
    """A plan as it is exported; None where neither a grid says it nor, if these may, meshes of stages do."""
    form, table = grid_form(stored.plan, model=stored.problem.model) or (None, None)
    of_stages: tuple[Mesh, ...] = ()
    if form is None and meshes:
        form, of_stages = meshes_of(stored.plan, model=stored.problem.model) or (None, ())
    if form is None:
        return None
    return Given(
        name=stored.name, cluster=stored.cluster, problem=stored.problem, plan=stored.plan, grid=form, table=table, meshes=of_stages
    )


def write_export(export: Export, folder: Path) -> tuple[Path, ...]:
    """Write the files of an export into a folder, which is made where it is not.

    Raises:
        OutputError: a file cannot be written.
    """
    paths = tuple(folder / file.name for file in export.files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, file in zip(paths, export.files, strict=True):
            path.parent.mkdir(exist_ok=True)
            path.write_text(file.text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}", hint="another -o") from error
    return paths
