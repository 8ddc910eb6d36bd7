"""Data of the view of a step's time: seconds of each part, and what its removal would be worth."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanIfFree:
    """The best plan of the same request if one part of the step took no time.

    Args:
        step_s: seconds of its step, the part left out.
        gain: fraction of the step's seconds that is saved.
        strategy: the best plan in that case.
        command: command that repeats the search; empty where no command can express the change.
    """

    step_s: float
    gain: float
    strategy: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimePart:
    """A part of the critical device's step.

    Args:
        name: in words, such as ``exposed TP communication``.
        seconds: seconds of the step.
        share: fraction of the step.
        if_free: the best plan if the part took no time; None if it was not searched.
    """

    name: str
    seconds: float
    share: float
    if_free: PlanIfFree | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeParts:
    """Parts of the critical device's step, the largest first; their seconds add up to the step."""

    step_s: float
    parts: tuple[StepTimePart, ...]
