"""Why rows are far off: sentences written after looking, each for the rows that a rule picks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardwright.calibrate.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A sentence for the rows of a source that `applies` picks."""

    source_id: str
    applies: Callable[[Case], bool]
    sentence: str


def _always(_: Case) -> bool:
    return True


REMARKS: Final[tuple[Remark, ...]] = ()


def remark_of(case: Case) -> str:
    """The first remark that applies; empty if nobody has looked yet."""
    return next((r.sentence for r in REMARKS if r.source_id == case.measurement.source_id and r.applies(case)), "")
