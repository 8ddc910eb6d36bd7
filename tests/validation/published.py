"""The project's own tables and the facts beside them."""

from functools import cache
from pathlib import Path

from shardwright.simulator.prediction import Prediction
from shardwright.validation.case import Case
from shardwright.validation.facts import Facts, read_facts
from shardwright.validation.folds import FoldConstants, read_folds
from shardwright.validation.measurements import Measurement, read_measurements
from shardwright.validation.rows import to_case
from shardwright.validation.study import Predictions

FOLDER = Path(__file__).parents[2] / "benchmarks" / "published"


@cache
def facts() -> Facts:
    return read_facts(FOLDER / "facts")


@cache
def rows(*names: str) -> tuple[Measurement, ...]:
    """Rows of tables, by file name; all of them for none."""
    return tuple(row for path in (names or sorted(FOLDER.glob("*.csv"))) for row in read_measurements(FOLDER / path))


@cache
def predictions(fold: str) -> Predictions:
    """In one kind of fold, or with the shipped constants (none); for all tests that judge rows, which one worker runs."""
    return Predictions([FoldConstants(fold="none") if fold == "none" else read_folds(FOLDER / "folds.json")[fold]])


def predicted(case: Case, *, fold: str = "none") -> Prediction:
    return predictions(fold).of(case, fold=fold)


def case_of(row: Measurement) -> Case:
    case = to_case(row, facts=facts())
    assert isinstance(case, Case), case
    return case
