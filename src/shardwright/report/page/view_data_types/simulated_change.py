"""A change of a strategy or its job that was simulated, with what it is worth."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedChange:
    """The best of several simulated changes.

    Args:
        change: in the notation of strategies, such as ``vpp4``; or in words.
        strategy: whole strategy after the change.
        command: command that simulates it again.
        step_s: seconds of its step.
        sequences: global batch size in sequences.
        gain: fraction of the seconds of a sequence that it saves; negative = it is slower.
        difference: `gain` with the other sign: seconds of a sequence that it adds.
        simulated: number of changes that were simulated.
    """

    change: str
    strategy: str
    command: str
    step_s: float
    sequences: int
    gain: float
    difference: float
    simulated: int
