"""Frameworks that can run a plan, shown beside the answer of a verb. It asks every exporter, so it
is imported only for plans that are no grid.
"""

from __future__ import annotations

from shardwright.api.runners import runners_of
from shardwright.api.stored import stored_plan
from shardwright.cli.beside import Beside
from shardwright.files.stored import StoredSimulation
from shardwright.report.screens.frameworks_screen import render_runners, runners_document


def frameworks_of(saved: StoredSimulation) -> Beside:
    """The frameworks that run a plan, or that only `shardwright run` does."""
    runners = runners_of(stored_plan(saved))
    return Beside(
        sections=(render_runners(runners),), document={"frameworks": runners_document(runners)}
    )
