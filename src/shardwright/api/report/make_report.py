"""Compute the report of a plan or simulation file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import shardwright
from shardwright.api.report.answer_card_content import answer_card
from shardwright.api.report.communication_groups_content import communication_groups, groups_change
from shardwright.api.report.memory_by_stage_content import memory_by_stage
from shardwright.api.report.pipeline_timeline_content import pipeline_timeline
from shardwright.api.report.simulate_stored_plan import simulate_stored
from shardwright.api.report.step_time_content import step_time_parts
from shardwright.api.report.timeline_change import timeline_change
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.files.plan_and_simulation_file_contents import StoredPlan
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.progress_callback import Progress
from shardwright.report.page.contents.report_content import (
    REPORT_SCHEMA,
    REPORT_VERSION,
    Report,
)


def make_report(
    path: Path,
    *,
    tokens: float = 0.0,
    prices: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compute the contents of the report of a plan or simulation file.

    Args:
        tokens: tokens of the training run; 0 = not given.
        prices: dollars a device-hour by accelerator, beside those of the cluster and the catalog.

    Raises:
        DataError: the file cannot be read.
    """
    saved = read_saved(path)
    request, step = saved.request, simulate_stored(saved)
    return Report(
        kind="plan" if isinstance(saved, StoredPlan) else "simulation",
        title=(
            f"{request.model} on {request.cluster}: {request.global_batch:,} sequences of"
            f" {request.seq_len:,} tokens a step"
        ),
        command=shlex.join(["shardwright", "report", path.name, "-o", f"{path.stem}.html"]),
        version=shardwright.__version__,
        answer=answer_card(saved, tokens=tokens, prices=prices),
        time=step_time_parts(saved, step, progress=progress),
        memory=memory_by_stage(saved, step, file_name=path.name, progress=progress),
        timeline=pipeline_timeline(step, change=timeline_change(saved, step, path)),
        communication=communication_groups(step, change=groups_change(saved, step, path)),
    )


def report_document(report: Report) -> dict[str, Any]:
    """JSON document of a report: its fields by name, with schema and version."""
    return {
        "schema": REPORT_SCHEMA,
        "schema_version": REPORT_VERSION,
        **to_json_value(report, names={}),
    }
