"""A strategy compared with a plan: its gains and losses, the rules it breaks, and its place in
the search.
"""

from __future__ import annotations

from shardwright.lazy_dataclass import dataclass
from shardwright.search.grid.locate_grid import Placed
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.prediction import Prediction, StageMemory
from shardwright.strategy.rule_violations import Violation

Beside = tuple[tuple[str, float, float], ...]
"""(part, of the plan, of the other strategy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The comparison of a strategy with a plan.

    Args:
        plan: what the other strategy is held against.
        strategy: the other one, as text.
        broken: every rule that it breaks.
        other: it, simulated; None where it breaks a rule.
        placed: where the search put it.
        read_as: how words that are not of the notation were read, such as ``"fsdp" as tp1 cp1 pp1
            zero3``.
    """

    plan: Simulation
    strategy: str
    broken: tuple[Violation, ...]
    other: Simulation | None
    placed: Placed
    read_as: str = ""

    @property
    def seconds(self) -> Beside:
        """(part, seconds of the plan, seconds of the other strategy) of each part of the step;
        each column adds up to its step.
        """
        return (
            ()
            if self.other is None
            else _beside(self.plan.prediction.breakdown_s, self.other.prediction.breakdown_s)
        )

    @property
    def memory(self) -> Beside:
        """(item, bytes of the plan, bytes of the other strategy) of each fullest device; each
        column adds up to its reserved memory.
        """
        return (
            ()
            if self.other is None
            else _beside(fullest(self.plan.prediction).items, fullest(self.other.prediction).items)
        )

    @property
    def host_memory(self) -> Beside:
        """(item, bytes of the plan, bytes of the other strategy) in the host memory of each
        fullest node; empty where neither offloads.
        """
        return (
            ()
            if self.other is None
            else _beside(_fullest_node(self.plan.prediction), _fullest_node(self.other.prediction))
        )


def _fullest_node(prediction: Prediction) -> tuple[tuple[str, int], ...]:
    return prediction.host_memory[0].items if prediction.host_memory else ()


def _beside(one: tuple[tuple[str, float], ...], other: tuple[tuple[str, float], ...]) -> Beside:
    here, there = dict(one), dict(other)
    return tuple(
        (name, here.get(name, 0), there.get(name, 0)) for name in dict.fromkeys([*here, *there])
    )


def fullest(prediction: Prediction) -> StageMemory:
    """The stage, or class of devices, that uses the largest share of its memory."""
    return max(
        prediction.stages,
        key=lambda stage: (
            stage.reserved / (stage.capacity or prediction.capacity_bytes),
            -stage.rank,
        ),
    )


def missing_bytes(prediction: Prediction) -> tuple[tuple[int, int], ...]:
    """(rank, missing bytes) of every stage, or class of devices, that does not fit."""
    lacks = (
        (stage.rank, stage.reserved - (stage.capacity or prediction.capacity_bytes))
        for stage in prediction.stages
    )
    return tuple((rank, count) for rank, count in lacks if count > 0)
