"""The answer of `advise`: a simulated launch, and the changes that make it faster."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.search_answer import Answer
from shardwright.search.simulated_strategy import Simulation
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.rule_violations import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A strategy that differs from the launch's, with its simulated step time.

    Args:
        text: the change, in the words of the grid notation.
        grid: the changed strategy.
        step_time_s: simulated seconds.
        gain: fraction of the launch's step time that is saved; 0 if the launch cannot run.
        added, removed: framework settings, (name, value), that make the difference.
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
        broken: rules that the launch's strategy breaks.
        now: the simulated launch; None if it breaks a rule.
        changes: changes of one decision that gain most, the largest gain first.
        considered: number of changes of one decision that were simulated.
        best: the best strategy of the space, certified; None if nothing fits.
        everything: a change of the launch that is no slower than `best` and each of `changes`: the
            fastest of them with every option that helps it.
        causes: properties of the launch's job that cost most and that no option of the search
            changes, such as a number format of 32 bits.
    """

    broken: tuple[Violation, ...]
    now: Simulation | None
    changes: tuple[Change, ...]
    considered: int
    best: Answer | None
    everything: Change | None
    causes: tuple[Change, ...] = ()
