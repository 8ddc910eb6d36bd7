"""``shardwright explain``: a plan file's answer, with the source of each number."""

from __future__ import annotations

from importlib import import_module

from rich.console import Group, RenderableType

from shardwright.api import simulate_strategy_and_verify_stored as simulate_strategy
from shardwright.cli import prediction_exit_code_and_quiet_line as verdict
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.files.plan_and_simulation_file_contents import (
    StoredPlan,
    StoredSimulation,
    document_of,
)
from shardwright.files.read_plan_and_simulation_files import read_saved, require_breakdown_sum
from shardwright.report.screens.general_search_screen import render_certificate
from shardwright.report.screens.plan_screen import render_explained, render_explanation


def explain(
    path: shared_options.PlanFile,
    *,
    form: shared_options.AnswerForm,
) -> int:
    """Print the answer of a plan file in full, with the source of every input number."""
    saved = read_saved(path)
    require_breakdown_sum(saved, name=str(path))
    screen.print_answer(
        form,
        document=lambda: document_of(saved),
        line=lambda: verdict.simulation_line(saved.simulation),
        picture=lambda: _picture(saved),
    )
    return verdict.exit_code(saved.prediction)


def _picture(saved: StoredSimulation) -> RenderableType:
    """Screen of a stored plan or simulation, with the source of every input number."""
    if isinstance(saved, StoredPlan) and saved.answer is not None:
        return render_explanation(saved.answer)
    simulation, frameworks = (
        saved.simulation,
        import_module("shardwright.cli.terminal.exportable_frameworks_section"),
    )
    explained = render_explained(simulation, picture=simulate_strategy.small_picture(simulation))
    certificate = [render_certificate(saved.certificate)] if isinstance(saved, StoredPlan) else []
    return Group(explained, *certificate, *frameworks.frameworks_section(saved).sections)


main = verb(explain, name="explain")
