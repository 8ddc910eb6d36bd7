"""The project's own tables and the facts beside them."""

from functools import cache
from pathlib import Path

from shardwright.simulator.prediction import Prediction
from shardwright.validation.case import Case
from shardwright.validation.facts import Facts, read_facts
from shardwright.validation.measurements import Measurement, read_measurements
from shardwright.validation.predict import predict_case
from shardwright.validation.rows import to_case

FOLDER = Path(__file__).parents[2] / "benchmarks" / "published"


@cache
def facts() -> Facts:
    return read_facts(FOLDER / "facts")


@cache
def rows(*names: str) -> tuple[Measurement, ...]:
    """Rows of tables, by file name; all of them for none."""
    return tuple(row for path in (names or sorted(FOLDER.glob("*.csv"))) for row in read_measurements(FOLDER / path))


@cache
def predicted(case: Case) -> Prediction:
    """With the shipped constants; once for all tests that judge the same row, which one worker runs (tests/together.py)."""
    return predict_case(case)


def case_of(row: Measurement) -> Case:
    case = to_case(row, facts=facts())
    assert isinstance(case, Case), case
    return case
