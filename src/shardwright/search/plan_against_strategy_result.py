"""A strategy compared with a plan: time and memory by part, broken rules, fate in the search."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.grid.fate_of_grid import LocatedGrid
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.prediction import Prediction, StageMemory
from shardwright.strategy.rule_violations import Violation

Beside = tuple[tuple[str, float, float], ...]
"""(part, value of the plan, value of the other strategy) for each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The comparison of another strategy with a plan.

    Args:
        plan: the plan that the other strategy is compared with.
        strategy: text of the other strategy.
        broken: rules that it breaks.
        other: simulation of the other strategy; None if it breaks a rule.
        placed: its fate in the search.
        read_as: reading of words outside the notation, such as ``"fsdp" as tp1 cp1 pp1 zero3``.
    """

    plan: Simulation
    strategy: str
    broken: tuple[Violation, ...]
    other: Simulation | None
    placed: LocatedGrid
    read_as: str = ""

    @property
    def seconds(self) -> Beside:
        """(part, plan's seconds, other's seconds) by part of the step; () = no other strategy.

        Each column adds up to its step.
        """
        return (
            ()
            if self.other is None
            else _paired_by_name(
                self.plan.prediction.breakdown_s, self.other.prediction.breakdown_s
            )
        )

    @property
    def memory(self) -> Beside:
        """(item, plan's bytes, other's bytes) on each fullest device; () = no other strategy.

        Each column adds up to its reserved memory.
        """
        return (
            ()
            if self.other is None
            else _paired_by_name(
                fullest(self.plan.prediction).items, fullest(self.other.prediction).items
            )
        )

    @property
    def host_memory(self) -> Beside:
        """(item, plan's, other's bytes) of host memory on each fullest node; () = no offload.

        Empty if neither offloads.
        """
        return (
            ()
            if self.other is None
            else _paired_by_name(
                _fullest_node(self.plan.prediction), _fullest_node(self.other.prediction)
            )
        )


def _fullest_node(prediction: Prediction) -> tuple[tuple[str, int], ...]:
    """(item, bytes) of host memory on the fullest node; () if nothing is offloaded."""
    return prediction.host_memory[0].items if prediction.host_memory else ()


def _paired_by_name(
    plan_parts: tuple[tuple[str, float], ...], other_parts: tuple[tuple[str, float], ...]
) -> Beside:
    """(name, plan's value, other's value) of each name in either table; 0 for a missing name."""
    plan_values, other_values = dict(plan_parts), dict(other_parts)
    return tuple(
        (name, plan_values.get(name, 0), other_values.get(name, 0))
        for name in dict.fromkeys([*plan_values, *other_values])
    )


def fullest(prediction: Prediction) -> StageMemory:
    """The stage, or class of devices, that fills the largest fraction of its memory."""
    return max(
        prediction.stages,
        key=lambda stage: (
            stage.reserved / stage.capacity_or(prediction.capacity_bytes),
            -stage.rank,
        ),
    )


def missing_bytes(prediction: Prediction) -> tuple[tuple[int, int], ...]:
    """(rank, missing bytes) of every stage, or class of devices, that does not fit."""
    lacks = (
        (stage.rank, stage.reserved - stage.capacity_or(prediction.capacity_bytes))
        for stage in prediction.stages
    )
    return tuple((rank, count) for rank, count in lacks if count > 0)
