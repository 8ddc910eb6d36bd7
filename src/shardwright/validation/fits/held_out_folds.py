"""Folds: groups of measured rows that are left out of a fit and judged with what the others say.

`model`: one model of one source, told by its size and width, as sources name one model in many
ways. `source`: all rows of one laboratory or vendor, as they leak into each other. `other base`:
the same, predicted under the base of another framework (`neighbour`), as somebody would whose
framework nobody has described. `accelerator`: all rows of one accelerator. `none`: nothing is left
out; the shipped constants.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np

from shardwright.errors import DataError, UsageError, nearest
from shardwright.hardware.catalog.constants import SHIPPED, Constants, names
from shardwright.lazy_dataclass import dataclass
from shardwright.units import GIGA
from shardwright.validation.fits.fit_constants import Fit, Progress, refine, row_weights
from shardwright.validation.fits.predict_run import Evaluator
from shardwright.validation.tables.measured_run import Case

FOLDS: Final = ("none", "model", "source", "other base", "accelerator")
CONSTANTS_OF: Final = {"other base": "source"}
"""Kinds of fold that take the constants of another kind."""
_SIMULATIONS: Final = {"model": 0, "source": 3, "accelerator": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldConstants:
    """What each fold is judged with: (key, constants) pairs of one kind of fold. A key that is
    missing is judged as shipped.
    """

    fold: str
    values: tuple[tuple[str, Constants], ...] = ()

    def of(self, case: Case) -> Constants:
        """The constants that were fitted without `case`'s fold."""
        return dict(self.values).get(fold_key(case, fold=self.fold), SHIPPED)


def fold_key(case: Case, *, fold: str) -> str:
    """Which fold of that kind a row is in; empty for ``none``.

    Raises:
        UsageError: unknown `fold`.
    """
    keys = {
        "none": "",
        "model": (
            f"{case.measurement.source_id}: {case.model.num_parameters / GIGA:.1f}B of width"
            f" {case.model.hidden}"
        ),
        "source": case.laboratory,
        "other base": case.laboratory,
        "accelerator": case.cluster.node.accelerator.name,
    }
    if fold not in keys:
        raise UsageError(f"unknown fold {fold[:40]!r}", hint=nearest(fold[:40], FOLDS))
    return keys[fold]


def leave_out(
    cases: Sequence[Case],
    whole: Fit,
    *,
    fold: str,
    evaluator: Evaluator,
    progress: Progress | None = None,
) -> FoldConstants:
    """Constants for every fold, fitted without it.

    Slopes are those of the fit to all rows, at whose end the search for each fold's optimum begins;
    residuals of ``source`` and ``accelerator`` folds, whose optimum may be far off, are simulated
    anew on the way; those of ``model`` folds are taken as linear.

    Args:
        cases: rows of the fit `whole`, in its order.
    """
    keys = [fold_key(case, fold=fold) for case in cases]
    weights = row_weights(cases)
    found: list[tuple[str, Constants]] = []
    distinct = sorted(set(keys))
    for index, key in enumerate(distinct):
        if progress is not None:
            progress(f"{fold} folds", index, len(distinct))
        kept = np.array([other != key for other in keys])
        constants = refine(
            cases,
            whole.sensitivity,
            weights=weights * kept,
            evaluator=evaluator,
            simulations=_SIMULATIONS[fold],
        )
        found.append((key, constants))
    return FoldConstants(fold=fold, values=tuple(found))


def fold_text(folds: Sequence[FoldConstants]) -> str:
    """JSON text of fitted folds, one constant set a line."""
    lines = []
    for group in folds:
        entries = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(asdict(value))}" for key, value in group.values
        )
        lines.append(f"{json.dumps(group.fold)}: {{\n{entries}\n}}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_folds(path: Path) -> dict[str, FoldConstants]:
    """Folds written by `fold_text`, by kind.

    Raises:
        DataError: it is no such file.
    """
    try:
        text = json.loads(path.read_text(encoding="utf-8"))
        groups = {
            fold: FoldConstants(
                fold=fold,
                values=tuple(
                    (k, Constants(**{n: float(v[n]) for n in names()})) for k, v in entries.items()
                ),
            )
            for fold, entries in text.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise DataError(
            f"{path.name}: not a file of fitted folds ({type(error).__name__})",
            hint="make accuracy writes one",
        ) from None
    return groups
