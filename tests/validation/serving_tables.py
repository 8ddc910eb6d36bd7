"""The project's own table of served configurations, and a stand-in for what predicts them."""

from functools import cache
from pathlib import Path

from shardwright.hardware.catalog.serving_constants import ServingConstants
from shardwright.validation.serving.measured_deployment import ServingCase, ServingSkip
from shardwright.validation.serving.measured_rows import (
    COLUMNS,
    ServingMeasurement,
    parse_serving,
    read_serving,
)
from shardwright.validation.serving.predictor_protocol import ServingPrediction
from shardwright.validation.serving.row_to_deployment import to_serving_case
from shardwright.validation.tables.table_facts import Facts, read_facts

FOLDER = Path(__file__).parents[2] / "benchmarks" / "published" / "serving"
HEADER = (
    "source_id,table_or_row,model_name,gpu,gpu_count,engine,tp,dpa,ep,precision,isl,osl,concurrency,"
    "tpot_ms,ttft_ms"
)
LINE = "lab,1,llama-3.3-70b,H200,4,vLLM 0.12.0,4,,,fp8,1024,512,64,17.5,300"


@cache
def facts() -> Facts:
    return read_facts(FOLDER / "facts", columns=COLUMNS)


@cache
def published(name: str = "runs.csv") -> tuple[ServingMeasurement, ...]:
    return read_serving(FOLDER / name)


@cache
def published_cases() -> tuple[ServingCase | ServingSkip, ...]:
    return tuple(to_serving_case(row, facts=facts()) for row in published())


def row_of(**cells: str) -> ServingMeasurement:
    """The row of `LINE` with other cells."""
    known = {**dict(zip(HEADER.split(","), LINE.split(","), strict=True)), **cells}
    content = "\n".join([",".join(known), ",".join(f'"{cell}"' for cell in known.values())])
    (row,) = parse_serving(content.encode(), source="t.csv")
    return row


def case_of(**cells: str) -> ServingCase:
    found = to_serving_case(row_of(**cells), facts=Facts())
    assert isinstance(found, ServingCase), found
    return found


def skip_of(**cells: str) -> ServingSkip:
    found = to_serving_case(row_of(**cells), facts=Facts())
    assert isinstance(found, ServingSkip), found
    return found


def a_tenth_too_slow(case: ServingCase, constants: ServingConstants) -> ServingPrediction:
    """What was measured and a tenth; of throughput a tenth less."""
    return ServingPrediction(
        tpot_s=1.1 * (case.tpot_s or 1.0),
        ttft_s=1.1 * (case.ttft_s or 1.0),
        tokens_per_s=0.9 * (case.tokens_per_s or 1.0),
    )
