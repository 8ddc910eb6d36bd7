"""What can run a plan, beside the answer of a verb. Loaded where a plan is no grid: every exporter
is asked.
"""

from __future__ import annotations

from shardwright.api.runners import runners_of
from shardwright.api.stored import stored_plan
from shardwright.cli.beside import Beside
from shardwright.files.stored import StoredSimulation
from shardwright.report.screens.frameworks_screen import render_runners, runners_document


def frameworks_of(saved: StoredSimulation) -> Beside:
    """The frameworks that run a plan, or that only `shardwright run` does."""
    found = runners_of(stored_plan(saved))
    return Beside(
        sections=(render_runners(found),), document={"frameworks": runners_document(found)}
    )
