"""The project's own tables and the facts beside them."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from zlib import crc32

from shardwright.simulator.prediction import Prediction
from shardwright.validation.errors.error_limits import selected
from shardwright.validation.errors.errors_by_fold import Predictions
from shardwright.validation.fits.held_out_folds import FoldConstants, read_folds
from shardwright.validation.rows.row_to_problem import to_case
from shardwright.validation.tables.measured_rows import Measurement, read_measurements
from shardwright.validation.tables.measured_run import Case, Skip
from shardwright.validation.tables.table_facts import Bar, Facts, read_facts
from tests.tiers import in_proof

LONG = (
    "dgxc, NeMo",
    "H100 and Blackwell, dense",
    "mosaic, 1B and more",
    "mbridge MoE",
    "Megatron CI, memory",
)
"""Bars of a hundred rows and more, which are proved."""
EACH = 4
"""Of the rows that are of these bars or of none, one in so many is tested."""
WHOLE = ("bloom", "nanotron")
"""Sources whose plans are held in their order, so that all are asked for."""

FOLDER = Path(__file__).parents[2] / "benchmarks" / "published"


@cache
def facts() -> Facts:
    return read_facts(FOLDER / "facts")


@cache
def rows(*names: str) -> tuple[Measurement, ...]:
    """Rows of tables, by file name; all of them for none."""
    return tuple(
        row
        for path in (names or sorted(FOLDER.glob("*.csv")))
        for row in read_measurements(FOLDER / path)
    )


@cache
def predictions(fold: str) -> Predictions:
    """In one kind of fold, or with the shipped constants (none); for all tests that judge rows,
    which one worker runs."""
    return Predictions(
        [FoldConstants(fold="none") if fold == "none" else read_folds(FOLDER / "folds.json")[fold]]
    )


def predicted(case: Case, *, fold: str = "none") -> Prediction:
    return predictions(fold).of(case, fold=fold)


def is_long(bar: Bar) -> bool:
    return bar.name in LONG


def some(cases: Iterable[Case | Skip]) -> tuple[Case | Skip, ...]:
    """The cases that are predicted: all in a proof, else those of the other bars, of orders and
    scalings, and some of the rest."""
    wanted = [where for bar in facts().bars if not is_long(bar) for where in bar.where]
    wanted += [one.where for one in (*facts().orders, *facts().scalings)]
    return tuple(
        case
        for case, row in ((case, case.measurement) for case in cases)
        if drawn(row) or row.source_id in WHOLE or selected(row, *wanted)
    )


def drawn(row: Measurement) -> bool:
    """One in `EACH`, whatever list it is in; all in a proof."""
    return in_proof() or crc32(f"{row.source_id} {row.table_or_row}".encode()) % EACH == 0


def case_of(row: Measurement) -> Case:
    case = to_case(row, facts=facts())
    assert isinstance(case, Case), case
    return case
