"""Predicted against measured step times: errors, and whether plans stand in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from statistics import median

CLEAR = 0.05
"""Plans whose measured times differ by more must stand in the predicted order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One setting.

    Args:
        cluster: settings of one name share it, and their model.
        steps_s: measured steps.
    """

    name: str
    cluster: str
    predicted_s: float
    steps_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """Median of the steps."""
        return median(self.steps_s)

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1.0


def mean_error(rows: Sequence[Compared]) -> float:
    """Mean of the errors' sizes."""
    return sum(abs(row.error) for row in rows) / len(rows)


def worst_error(rows: Sequence[Compared]) -> float:
    """Largest of the errors' sizes."""
    return max(abs(row.error) for row in rows)


def comparable(rows: Iterable[Compared]) -> list[tuple[Compared, Compared]]:
    """Pairs of plans on one cluster whose measured times differ by more than `CLEAR` of the
    smaller."""
    found = []
    for _, group in groupby(sorted(rows, key=lambda r: r.cluster), key=lambda r: r.cluster):
        for one, other in combinations(group, 2):
            low, high = sorted((one.measured_s, other.measured_s))
            if high > low * (1.0 + CLEAR):
                found.append((one, other))
    return found


def disordered(rows: Iterable[Compared]) -> list[tuple[Compared, Compared]]:
    """Of these pairs, those that are predicted in the other order."""
    return [
        (a, b)
        for a, b in comparable(rows)
        if (a.measured_s < b.measured_s) != (a.predicted_s < b.predicted_s)
    ]
