"""The report of a file that `compare`, `advise` or `serve-simulate` wrote."""

from __future__ import annotations

import shlex
from pathlib import Path

import shardwright
from shardwright.api.report.compared_strategies_content import compared_strategies
from shardwright.api.report.faster_launch_changes_content import launch_advice
from shardwright.api.report.serving_latencies_content import serving_latencies
from shardwright.files.comparison_advice_serving_document_classes import (
    StoredAdvice,
    StoredComparison,
    StoredServing,
)
from shardwright.files.read_comparison_advice_and_serving import OtherAnswer
from shardwright.report.page.view_data_types.report_content import Report


def report_of_other_answer(saved: OtherAnswer, path: Path) -> Report:
    """Compute the report of a comparison, an advice or a serving result.

    Args:
        path: the file that it was read from.
    """
    command, version = report_command(path), shardwright.__version__
    if isinstance(saved, StoredComparison):
        compared = compared_strategies(saved)
        title = f"{compared.model}: {len(compared.rows)} strategies compared"
        return Report(
            kind="comparison", title=title, command=command, version=version, comparison=compared
        )
    if isinstance(saved, StoredAdvice):
        advice = launch_advice(saved)
        return Report(
            kind="advice", title=_launch(saved), command=command, version=version, advice=advice
        )
    return Report(
        kind="serving",
        title=_deployment(saved),
        command=command,
        version=version,
        serving=serving_latencies(saved),
    )


def report_command(path: Path) -> str:
    """Command that makes the page of a file again."""
    return shlex.join(["shardwright", "report", path.name, "-o", f"{path.stem}.html"])


def _launch(saved: StoredAdvice) -> str:
    """Title of an advice: framework, with model and cluster, or strategy where it cannot run."""
    if saved.prediction is None:
        return f"A launch of {saved.framework}: {saved.strategy}"
    model, cluster = saved.prediction.model.name, saved.prediction.cluster
    return f"A launch of {saved.framework}: {model} on {cluster}"


def _deployment(saved: StoredServing) -> str:
    """Title of a serving result: model, cluster, engine and deployment."""
    request = saved.request
    return f"Serving {request.model} on {request.cluster} with {saved.engine}: {saved.deployment}"
