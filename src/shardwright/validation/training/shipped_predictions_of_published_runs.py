"""Published training runs with their measured and predicted steps, as the package ships them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass

FILE: Final = Path(__file__).with_name("predictions_of_published_runs.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """A published run, predicted with constants that were fitted without its laboratory's runs.

    Args:
        model: name as published.
        parameters: all stored parameters.
        accelerator: name in the catalog.
        runtime: framework and release, without options.
        tp, cp, pp, ep: degrees of parallelism.
        measured_s, predicted_s: seconds of a step.
        low_s, high_s: ends of the prediction interval.
        source, row: repository, file and commit, or paper, of the measurement; and its row there.
    """

    model: str
    parameters: int
    accelerator: str
    devices: int
    runtime: str
    tp: int
    cp: int
    pp: int
    ep: int
    sequence_tokens: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    source: str
    row: str

    @property
    def reference(self) -> str:
        """Text ``source: row`` of the published measurement."""
        return f"{self.source}: {self.row}"

    @property
    def error(self) -> float:
        """Relative error of the step seconds: predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def inside(self) -> bool:
        """True if the measured step time is inside the predicted 80 % interval."""
        return self.low_s <= self.measured_s <= self.high_s


@cache
def predictions_of_published_runs() -> tuple[PredictedRun, ...]:
    """The published runs of the shipped file, in its order.

    The file has a list for each field; of a field in its ``names``, places in a list of names.
    `tools/predictions_of_published_runs.py` writes it.
    """
    columns = json.loads(FILE.read_text(encoding="utf-8"))
    for field, names in columns.pop("names").items():
        columns[field] = [names[place] for place in columns[field]]
    rows = zip(*columns.values(), strict=True)
    return tuple(PredictedRun(**dict(zip(columns, row, strict=True))) for row in rows)
