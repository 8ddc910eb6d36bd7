"""Data of a notebook's card of a general plan: sizes, lanes and the plan's notation."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLaneRow:
    """A lane of a plan, its part of the global batch, and its pipeline.

    Args:
        samples: sequences of the global batch.
        order: name of the schedule of its pipeline, or ``table``.
    """

    name: str
    role: str
    samples: int
    microbatches: int
    stages: int
    order: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCard:
    """Sizes of a general plan, and its text in the general notation.

    Args:
        samples: sequences of the global batch over all lanes that train.
        stages: stages of all lanes together.
        zero_rules: ZeRO rules.
        lines: lines of the notation.
        notation: its first lines; None where the notation cannot express a name.
        shown_lines: number of these lines.
    """

    devices: int
    samples: int
    stages: int
    zero_rules: int
    lanes: tuple[PlanLaneRow, ...]
    lines: int
    notation: str | None
    shown_lines: int
