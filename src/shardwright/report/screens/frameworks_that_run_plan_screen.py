"""The frameworks that can run a plan, as a section of a screen and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from shardwright.report.titled_screen_sections import section
from shardwright.search.runnable_and_refused_frameworks_record import Runners

RUN_COMMAND = "shardwright run"


def frameworks_document(runners: Runners) -> dict[str, Any]:
    """JSON object ``runners``: exact and lossy exporters, and refusals with reasons."""
    return {
        "exact": list(runners.exact),
        "otherwise": dict(runners.otherwise),
        "refused": dict(runners.refused),
    }


def render_frameworks(runners: Runners) -> RenderableType:
    """Section with frameworks that run a plan exactly, else almost, else why none can run it."""
    if runners.exact:
        names, first = ", ".join(runners.exact), runners.exact[0]
        text = f"{names} (shardwright export PLAN --to {first}), and {RUN_COMMAND}"
    elif runners.otherwise:
        names = ", ".join(
            f"{name} (otherwise: {difference})" for name, difference in runners.otherwise
        )
        text = (
            f"{names}: shardwright export PLAN --to {runners.otherwise[0][0]} --allow-lossy; as"
            f" planned, only {RUN_COMMAND} does"
        )
    else:
        reasons: dict[str, list[str]] = {}
        for name, why in runners.refused:
            reasons.setdefault(why, []).append(name)
        refusals = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        text = f"Only {RUN_COMMAND}. No framework that plans are exported to can: {refusals}"
    return section("What can run this plan", Text(text))
