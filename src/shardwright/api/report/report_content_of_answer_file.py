"""Compute the report of the file of an answer."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import shardwright
from shardwright.api.report.bubble_causes import idle_pieces
from shardwright.api.report.changes.change_that_shortens_idle_time import timeline_change
from shardwright.api.report.communication_groups_content import communication_groups, groups_change
from shardwright.api.report.memory_by_stage_content import memory_by_stage
from shardwright.api.report.other_plans.searched_members_content import searched_members
from shardwright.api.report.pipeline_timeline_content import pipeline_timeline
from shardwright.api.report.predicted_step_cost_memory_proof_content import answer_card
from shardwright.api.report.prediction_accuracy_content import prediction_accuracy
from shardwright.api.report.simulate_stored_plan import simulate_stored
from shardwright.api.report.step_time_content import step_time_parts
from shardwright.api.report.what_if_content import what_if_axes
from shardwright.api.request_to_command import price_words
from shardwright.api.what_if.search_best_plans_along_axis import can_repeat_search
from shardwright.errors import UsageError
from shardwright.files.canonical_json import canonical_value, parse_json, read_text
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.files.plan_and_simulation_file_contents import StoredPlan
from shardwright.files.read_plan_and_simulation_files import parse_saved, read_saved
from shardwright.progress_callback import Progress
from shardwright.registry import load_target
from shardwright.report.page.view_data_types.report_content import (
    REPORT_SCHEMA,
    REPORT_VERSION,
    Report,
)
from shardwright.search.parallel.engine_protocol import Engine

_HINT: Final = "`shardwright plan ... -o FILE` writes one"
_PARSE_OTHER: Final = "shardwright.files.read_comparison_advice_and_serving:parse_other_answer"
_REPORT_OTHER: Final = (
    "shardwright.api.report.report_content_of_comparison_advice_or_serving:report_of_other_answer"
)
"""Functions for files without a schema. They import the serving simulation, so that they are
imported for such a file alone."""


def make_report(
    path: Path,
    *,
    tokens: float = 0.0,
    prices: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compute the contents of the report of a file.

    The file is a plan, a simulation, a comparison, an advice or a serving result.

    Args:
        tokens: tokens of the training run; 0 = not given.
        prices: dollars a device-hour by accelerator, beside those of the cluster and the catalog.

    Raises:
        DataError: the file cannot be read, or its prediction is not what this version simulates.
        UsageError: tokens or prices for a file that is neither a plan nor a simulation.
    """
    text = read_text(path, what="answer file", hint=_HINT)
    document = parse_json(text, name=str(path), hint=_HINT)
    has_schema = not isinstance(document, dict) or "schema" in document
    other = None if has_schema else load_target(_PARSE_OTHER)(text, name=str(path))
    if other is not None:
        if tokens or prices:
            raise UsageError(
                f"--tokens and --price are for plans and simulations, and {path.name} is neither",
                hint="give them to `shardwright compare`, which stores the costs",
            )
        report: Report = load_target(_REPORT_OTHER)(other, path)
        return report
    saved = parse_saved(text, name=str(path), folder=path.parent)
    request, step = saved.request, simulate_stored(saved)
    pieces = idle_pieces(step.simulated.program, step.simulated.timeline)
    given = _given_options(tokens, prices or {})
    command = ["shardwright", "report", path.name, *given, "-o", f"{path.stem}.html"]
    return Report(
        kind="plan" if isinstance(saved, StoredPlan) else "simulation",
        title=(
            f"{request.model} on {request.cluster}: {request.global_batch:,} sequences of"
            f" {request.seq_len:,} tokens a step"
        ),
        command=shlex.join(command),
        version=shardwright.__version__,
        answer=answer_card(saved, tokens=tokens, prices=prices),
        time=step_time_parts(saved, step, progress=progress),
        memory=memory_by_stage(saved, step, file_name=path.name, progress=progress),
        # Simulates plans that the view of memory has just laid out.
        members=searched_members(saved) if isinstance(saved, StoredPlan) else None,
        timeline=pipeline_timeline(step, pieces, change=timeline_change(saved, step, path)),
        communication=communication_groups(step, pieces, change=groups_change(saved, step, path)),
        what_if_command=(shlex.join([*command, "--what-if"]) if can_repeat_search(request) else ""),
        accuracy=prediction_accuracy(saved),
    )


def add_what_if(
    report: Report,
    answer_file: Path,
    *,
    prices: Mapping[str, float] | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Report:
    """Add best plans of changed requests to the report of a saved plan or simulation.

    After Ctrl-C the positions whose search had ended are kept.

    Args:
        prices: as in `make_report`.
        engine: runs the searches; the answer is the same.

    Raises:
        UsageError: the file is neither a plan nor a simulation, or the search of its request takes
            too long to repeat.
    """
    if report.kind not in ("plan", "simulation"):
        raise UsageError(
            f"--what-if is for plans and simulations, and {answer_file.name} is neither",
            hint="write a plan with `shardwright plan ... -o FILE`",
        )
    request = read_saved(answer_file).request
    axes = what_if_axes(request, prices=prices, engine=engine, progress=progress)
    return replace(report, what_if=axes, command=report.what_if_command, what_if_command="")


def _given_options(tokens: float, prices: Mapping[str, float]) -> list[str]:
    """Words of the options that a report was made with."""
    return [*(["--tokens", f"{tokens:.17g}"] if tokens else []), *price_words(prices)]


def report_document(report: Report) -> dict[str, Any]:
    """JSON document of a report, with its numbers as a file holds them: schema, version, fields."""
    document: dict[str, Any] = canonical_value(
        {
            "schema": REPORT_SCHEMA,
            "schema_version": REPORT_VERSION,
            **to_json_value(report, names={}),
        }
    )
    return document
