"""Find the frameworks that a plan can be exported to, exactly or with differences."""

from __future__ import annotations

from shardwright.api.exports.export_plan import exportable_plan
from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import Shortfall
from shardwright.frameworks.registry import TARGETS
from shardwright.search.runnable_and_refused_frameworks_record import Runners


def frameworks_for_plan(stored: PlanOfProblem) -> Runners:
    """Export targets that run a plan exactly, those with differences, and the refusals."""
    exact: list[str] = []
    differing: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    for name in TARGETS:
        exporter = TARGETS.load(name)
        exportable = exportable_plan(stored, meshes=exporter.stages_differ)
        shortfalls: tuple[Shortfall, ...] = (
            () if exportable is None else tuple(exporter.shortfalls(exportable))
        )
        refusals = [shortfall.what for shortfall in shortfalls if not shortfall.instead]
        if exportable is None or refusals:
            refused.append((name, refusals[0] if refusals else "no grid says this plan"))
        elif shortfalls:
            differing.append((name, "; ".join(shortfall.what for shortfall in shortfalls)))
        else:
            exact.append(name)
    return Runners(exact=tuple(exact), otherwise=tuple(differing), refused=tuple(refused))
