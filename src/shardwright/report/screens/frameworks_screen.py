"""The frameworks that can run a plan, as a section of a screen and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from shardwright.report.screens.plan_screen import section
from shardwright.search.runnable_frameworks import Runners

OWN = "shardwright run"


def runners_document(found: Runners) -> dict[str, Any]:
    """Under ``frameworks``."""
    return {
        "exact": list(found.exact),
        "otherwise": dict(found.otherwise),
        "refused": dict(found.refused),
    }


def render_runners(found: Runners) -> RenderableType:
    """The frameworks by name; or that only `shardwright run` does, and why."""
    if found.exact:
        text = (
            f"{', '.join(found.exact)} (shardwright export PLAN --to {found.exact[0]}), and {OWN}"
        )
    elif found.otherwise:
        names = ", ".join(f"{name} (otherwise: {what})" for name, what in found.otherwise)
        text = (
            f"{names}: shardwright export PLAN --to {found.otherwise[0][0]} --allow-lossy; as"
            f" planned, only {OWN} does"
        )
    else:
        reasons: dict[str, list[str]] = {}
        for name, why in found.refused:
            reasons.setdefault(why, []).append(name)
        told = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        text = f"Only {OWN}. No framework that plans are exported to can: {told}"
    return section("What can run this plan", Text(text))
