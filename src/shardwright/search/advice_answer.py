"""The answer of `advise`: a launch simulated, and the changes that make it faster."""

from __future__ import annotations

from shardwright.lazy_dataclass import dataclass
from shardwright.search.search_answer import Answer
from shardwright.search.simulated_strategy import Simulation
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.rule_violations import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A strategy that differs from the launch's, with its step.

    Args:
        text: what is changed, in the grid's words.
        grid: with it.
        step_time_s: simulated.
        gain: share of the launch's time that it saves; 0 where the launch cannot run.
        added, removed: settings of the framework, (name, value), that make the difference.
    """

    text: str
    grid: Grid
    step_time_s: float
    gain: float
    added: tuple[tuple[str, str], ...] = ()
    removed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The advice for a launch: its own step, the changes that gain most, and the best strategy.

    Args:
        broken: rules that the strategy breaks.
        now: it, simulated; None where it breaks a rule.
        changes: of one decision each, those that gain most, the most first.
        considered: changes of one decision that were simulated.
        best: the best strategy of the space, certified; None where nothing fits.
        everything: a change of the launch that is no slower than `best` and every one of `changes`:
            the fastest of them with every option that helps it.
        causes: what of the launch's job costs most and no option of the search changes, such as a
            number format of 32 bits.
    """

    broken: tuple[Violation, ...]
    now: Simulation | None
    changes: tuple[Change, ...]
    considered: int
    best: Answer | None
    everything: Change | None
    causes: tuple[Change, ...] = ()
