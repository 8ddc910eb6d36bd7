"""A plan: lanes with their stages, pipeline orders, ZeRO rules and runtime options."""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table


class Cadence(StrEnum):
    """Frequency of parameter gathers or gradient reductions: each use, microbatch or step."""

    USE = "use"
    MICROBATCH = "microbatch"
    STEP = "step"


class ShardUnit(StrEnum):
    """Unit that ZeRO cuts into shards: the flat buffer, tensors along dim 0, or whole tensors."""

    FLAT = "flat"
    DIM0 = "dim0"
    WHOLE = "whole"


class State(StrEnum):
    """Training states that may live in host memory."""

    OPTIMIZER = "opt"
    GRADIENT = "grad"
    PARAMETER = "param"


ALL = 0
"""Degree of a shard rule: every member of the sync group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """A ZeRO rule: shard degrees of optimizer states, gradients and parameters, by parameter class.

    No named class means all classes. The degrees count members of each sync group.

    A rule that names lanes holds for these alone. Optimizer states are sharded over all devices
    that reduce the parameter's gradient, in every lane. Gradients and parameters of a lane named by
    a rule are sharded over the lane's own members: lanes of different microbatches gather and
    reduce at different times.

    Args:
        lanes: lanes of the rule; none named = all.
        optimizer, gradient, parameter: shard degrees; 1 = not sharded, `ALL` = the whole group;
            each divides the one before.
        gather, reduce: cadence of parameter gathers and gradient reductions.
        host: (state, percent) of the states in host memory.
        by_memory: shards in proportion to the holders' free memory instead of equal shards.
    """

    parameters: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    optimizer: int = 1
    gradient: int = 1
    parameter: int = 1
    gather: Cadence = Cadence.STEP
    reduce: Cadence = Cadence.STEP
    unit: ShardUnit = ShardUnit.FLAT
    host: tuple[tuple[State, int], ...] = ()
    by_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete strategy on `devices` devices, numbered as the cluster numbers them.

    `options` are the runtime options of the whole plan.
    """

    devices: int
    lanes: tuple[Lane, ...]
    orders: tuple[NamedOrder | Table, ...]
    shards: tuple[Shards, ...] = ()
    options: Options = ()
