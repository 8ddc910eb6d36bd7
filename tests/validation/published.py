"""The project's own tables and the facts beside them."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from zlib import crc32

from shardwright.hardware.catalog.fitted_training_constants import SHIPPED, Constants
from shardwright.simulator.prediction import Prediction
from shardwright.validation.fits.cached_parallel_predictions import Predictor
from shardwright.validation.tables.csv_rows import read_table
from shardwright.validation.tables.row_conditions import cells_of, selected
from shardwright.validation.tables.skipped_rows import SkippedRow
from shardwright.validation.tables.table_facts_from_toml import (
    ErrorLimit,
    TableFacts,
    read_facts,
)
from shardwright.validation.training.fit_constants import read_folds
from shardwright.validation.training.kinds_of_cross_validation_folds import FOLDS
from shardwright.validation.training.measured_training_run import TrainingRun, identity_of
from shardwright.validation.training.predict_run import predict_fitting_run
from shardwright.validation.training.row_to_training_run import to_training_run
from shardwright.validation.training.training_table_columns import (
    TRAINING_TABLE,
    TrainingMeasurement,
)
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
def facts() -> TableFacts:
    return read_facts(FOLDER / "facts", form=TRAINING_TABLE)


@cache
def rows(*names: str) -> tuple[TrainingMeasurement, ...]:
    """Rows of tables, by file name; all of them for none."""
    return tuple(
        row
        for path in (names or sorted(FOLDER.glob("*.csv")))
        for row in read_table(FOLDER / path, form=TRAINING_TABLE)
    )


@cache
def stored_folds() -> dict[str, dict[str, Constants]]:
    """Kind of fold -> key -> the stored constants."""
    return read_folds(FOLDER / "folds.json")


@cache
def predictions() -> Predictor[Prediction]:
    """For all tests that judge rows, which one worker runs."""
    return Predictor(predict_fitting_run, identity=identity_of)


def predicted(run: TrainingRun, *, fold: str = "none") -> Prediction:
    """The prediction in one kind of fold, or with the shipped constants (none)."""
    kind = FOLDS[fold]
    held_out = {} if fold == "none" else stored_folds()[kind.fitted_as or fold]
    asked = kind.predicted_as(run) if kind.predicted_as else run
    (prediction,) = predictions().results([(asked, held_out.get(kind.key(run), SHIPPED))])
    return prediction


def is_long(bar: ErrorLimit) -> bool:
    return bar.name in LONG


def some(cases: Iterable[TrainingRun | SkippedRow]) -> tuple[TrainingRun | SkippedRow, ...]:
    """The cases that are predicted: all in a proof, else those of the other bars, of orders and
    scalings, and some of the rest."""
    wanted = [where for bar in facts().bars if not is_long(bar) for where in bar.where]
    wanted += [one.where for one in (*facts().orders, *facts().scalings)]
    return tuple(
        case
        for case, row in ((case, case.measurement) for case in cases)
        if drawn(row) or row.source_id in WHOLE or selected(cells_of(row), wanted)
    )


def drawn(row: TrainingMeasurement) -> bool:
    """One in `EACH`, whatever list it is in; all in a proof."""
    return in_proof() or crc32(f"{row.source_id} {row.table_or_row}".encode()) % EACH == 0


@cache
def case_of(row: TrainingMeasurement) -> TrainingRun:
    case = to_training_run(row, facts=facts())
    assert isinstance(case, TrainingRun), case
    return case
