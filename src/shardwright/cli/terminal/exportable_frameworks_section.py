"""Screen section of the frameworks that can run a plan.

Every exporter is asked, so this module is imported only for plans that are not grids.
"""

from __future__ import annotations

from shardwright.api.exports.exportable_frameworks import frameworks_for_plan
from shardwright.api.plan_and_problem_from_file import stored_plan
from shardwright.cli.terminal.additional_sections_and_json_fields_record import ExtraAnswers
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.report.screens.frameworks_that_run_plan_screen import (
    frameworks_document,
    render_frameworks,
)


def frameworks_section(saved: StoredSimulation) -> ExtraAnswers:
    """Screen section and JSON of targets that export a plan exactly, with differences, or not."""
    runners = frameworks_for_plan(stored_plan(saved))
    return ExtraAnswers(
        sections=(render_frameworks(runners),),
        document={"frameworks": frameworks_document(runners)},
    )
