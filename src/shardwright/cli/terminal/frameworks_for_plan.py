"""Frameworks that can run a plan, shown beside the answer of a verb. It asks every exporter, so it
is imported only for plans that are no grid.
"""

from __future__ import annotations

from shardwright.api.frameworks_for_plan import runners_of
from shardwright.api.stored_answers import stored_plan
from shardwright.cli.terminal.extra_answers import Beside
from shardwright.files.stored_documents import StoredSimulation
from shardwright.report.screens.frameworks_screen import render_runners, runners_document


def frameworks_of(saved: StoredSimulation) -> Beside:
    """The frameworks that run a plan, or that only `shardwright run` does."""
    runners = runners_of(stored_plan(saved))
    return Beside(
        sections=(render_runners(runners),), document={"frameworks": runners_document(runners)}
    )
