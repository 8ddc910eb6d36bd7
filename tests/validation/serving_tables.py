"""The project's own table of served configurations, and a stand-in for what predicts them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from shardwright.hardware.catalog.fitted_serving_constants import ServingConstants
from shardwright.validation.serving.accuracy_page import ServingStudy
from shardwright.validation.serving.measured_deployment import ServingRun, ServingValues
from shardwright.validation.serving.row_to_serving_run import to_serving_run
from shardwright.validation.serving.serving_table_columns import SERVING_TABLE, ServingMeasurement
from shardwright.validation.serving.serving_table_reader_with_prediction_and_fit import SERVED
from shardwright.validation.table_reader_and_fold_validation import Fitted
from shardwright.validation.tables.csv_rows import parse_table, read_table
from shardwright.validation.tables.skipped_rows import SkippedRow
from shardwright.validation.tables.table_facts_from_toml import TableFacts, read_facts

FOLDER = Path(__file__).parents[2] / "benchmarks" / "published" / "serving"
HEADER = (
    "source_id,table_or_row,model_name,gpu,gpu_count,engine,tp,dpa,ep,precision,isl,osl,concurrency,"
    "tpot_ms,ttft_ms"
)
LINE = "lab,1,llama-3.3-70b,H200,4,vLLM 0.12.0,4,,,fp8,1024,512,64,17.5,300"


@cache
def facts() -> TableFacts:
    return read_facts(FOLDER / "facts", form=SERVING_TABLE)


@cache
def published(name: str = "runs.csv") -> tuple[ServingMeasurement, ...]:
    return read_table(FOLDER / name, form=SERVING_TABLE)


@cache
def published_cases() -> tuple[ServingRun | SkippedRow, ...]:
    return tuple(to_serving_run(row, facts=facts()) for row in published())


def row_of(**cells: str) -> ServingMeasurement:
    """The row of `LINE` with other cells."""
    known = {**dict(zip(HEADER.split(","), LINE.split(","), strict=True)), **cells}
    content = "\n".join([",".join(known), ",".join(f'"{cell}"' for cell in known.values())])
    (row,) = parse_table(content.encode(), form=SERVING_TABLE, source="t.csv")
    return row


def case_of(**cells: str) -> ServingRun:
    found = to_serving_run(row_of(**cells), facts=TableFacts())
    assert isinstance(found, ServingRun), found
    return found


def skip_of(**cells: str) -> SkippedRow:
    found = to_serving_run(row_of(**cells), facts=TableFacts())
    assert isinstance(found, SkippedRow), found
    return found


def a_tenth_too_slow(case: ServingRun, constants: ServingConstants) -> ServingValues:
    """What was measured and a tenth; of throughput a tenth less."""
    return ServingValues(
        tpot_s=1.1 * (case.values.tpot_s or 1.0),
        ttft_s=1.1 * (case.values.ttft_s or 1.0),
        tokens_per_s=0.9 * (case.values.tokens_per_s or 1.0),
    )


def shipped(
    runs: Sequence[ServingRun], *, folds: Sequence[str], **_: Any
) -> Fitted[ServingConstants]:
    """Nothing is fitted: whatever is held out, constants are the shipped ones."""
    return Fitted(constants={fold: {} for fold in folds})


def study(
    rows: Sequence[ServingRun | SkippedRow],
    evaluate: Callable[[ServingRun, ServingConstants], ServingValues],
    *,
    fit: Callable[..., Fitted[ServingConstants]] = shipped,
    folds: Sequence[str] = (),
) -> ServingStudy:
    """The validations of rows with another predictor."""
    reader = replace(SERVED, predict=evaluate, fit=fit)
    return reader.study(rows, facts=TableFacts(), folds=folds)
