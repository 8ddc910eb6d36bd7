"""Data of the view of a step's time: seconds of each part, and what its removal would be worth."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanIfFree:
    """The step if one part of it took no time.

    Args:
        step_s: seconds of the step, all other costs as they are.
        gain: fraction of the step's seconds that is saved.
        same_plan_s: seconds of the report's own strategy in that case.
        strategy: the best plan in that case; ``this plan`` for the report's own strategy.
        searched: True = `strategy` is the best of the same space, searched again; False = the
            report's own strategy was simulated alone.
    """

    step_s: float
    gain: float
    same_plan_s: float
    strategy: str
    searched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimePart:
    """A part of the critical device's step.

    Args:
        name: in words, such as ``exposed TP communication``.
        seconds: seconds of the step.
        share: fraction of the step.
        if_free: the step if the part took no time; None if it was not computed.
        note: why not, in words; empty otherwise.
    """

    name: str
    seconds: float
    share: float
    if_free: PlanIfFree | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterOption:
    """A runtime option that the search kept at one value, at the value that saves most.

    Args:
        option: ``name=value``.
        step_s: seconds of the step of the same strategy with that value.
        gain: fraction of the step's seconds that is saved.
        command: command that searches with that value.
    """

    option: str
    step_s: float
    gain: float
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BetterSize:
    """A batch or number of devices near the request's that was searched, and uses devices better.

    Args:
        gain: fraction more tokens/s for each device of the cluster, idle ones included.
        command: command that searches it; empty where no command can say it.
    """

    devices: int
    sequences: int
    step_s: float
    gain: float
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondBest:
    """The second best plan of the searched space.

    Args:
        longer: fraction by which its step is longer than the best.
    """

    strategy: str
    step_s: float
    longer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeParts:
    """Parts of the critical device's step, the largest first; their seconds add up to the step.

    Args:
        dearest: number of the part whose removal would save most; -1 = none was removed.
        option: an unsearched option that would shorten the step; None if there is none.
        size: a nearby batch or number of devices that is better; None if there is none.
        second: None where no search ranked a second plan.
    """

    step_s: float
    parts: tuple[StepTimePart, ...]
    dearest: int = -1
    option: FasterOption | None = None
    size: BetterSize | None = None
    second: SecondBest | None = None
