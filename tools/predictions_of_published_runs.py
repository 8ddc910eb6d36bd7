"""Write the package's file of published runs with their predicted steps.

    python tools/predictions_of_published_runs.py

Each row of benchmarks/published/training.csv is predicted with the constants that `make accuracy`
fitted without the rows of its laboratory (benchmarks/published/folds.json).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Final

from shardwright.validation.training.shipped_predictions_of_published_runs import FILE, PredictedRun
from shardwright.validation.training.sweep_and_scaling_checks import TrainingRow, timed
from shardwright.validation.validate_tables import accuracy, reader_of

PUBLISHED: Final = Path(__file__).parents[1] / "benchmarks" / "published"
FOLD: Final = "source"
NAMED: Final = ("model", "accelerator", "runtime", "source")
_FIELDS: Final = [field.name for field in fields(PredictedRun)]
DIGITS: Final = 5
"""Significant digits of stored seconds."""


def held_out_rows() -> tuple[TrainingRow, ...]:
    """All judged rows of the published table, predicted without their laboratory's rows."""
    table = PUBLISHED / "training.csv"
    reader = reader_of([table])
    study = accuracy(
        reader,
        table,
        facts=reader.facts(table, folder=None),
        folds=(FOLD,),
        stored=reader.read_stored(PUBLISHED / "folds.json"),
    )
    return study.validation(FOLD).rows


def predicted_run(row: TrainingRow, predicted_s: float, measured_s: float) -> PredictedRun:
    """The stored form of a judged row that has a measured and a predicted step."""
    run, prediction = row.run, row.prediction
    assert prediction is not None
    low_s, high_s = prediction.interval_s
    return PredictedRun(
        model=run.measurement.model_name,
        parameters=run.model.num_parameters,
        accelerator=run.cluster.node.accelerator.name,
        devices=run.cluster.num_devices,
        runtime=run.runtime.split()[0],
        tp=run.grid.tp,
        cp=run.grid.cp,
        pp=run.grid.pp,
        ep=run.grid.ep,
        sequence_tokens=run.job.sequence_length,
        measured_s=_rounded(measured_s),
        predicted_s=_rounded(predicted_s),
        low_s=_rounded(low_s),
        high_s=_rounded(high_s),
        source=run.measurement.source,
        row=run.measurement.table_or_row,
    )


def _rounded(seconds: float) -> float:
    """Seconds with `DIGITS` significant digits."""
    return float(f"{seconds:.{DIGITS}g}")


def runs_text(rows: Iterable[TrainingRow]) -> str:
    """Text of the file: a list for each field in the order of the tables, with repeated names once.

    Of a field whose texts repeat, the lists have places in the field's list of names.
    """
    runs = [predicted_run(row, predicted, measured) for row, predicted, measured in timed(rows)]
    columns = {name: [getattr(run, name) for run in runs] for name in _FIELDS}
    names = {name: sorted(set(columns[name])) for name in NAMED}
    for name, listed in names.items():
        columns[name] = [listed.index(value) for value in columns[name]]
    lines = [
        f" {json.dumps(name)}: {json.dumps(values, separators=(',', ':'))}"
        for name, values in ({"names": names} | columns).items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(runs_text(held_out_rows()), encoding="utf-8")
