"""A plan: lanes x (A_pipe, A_op, L_pipe) and the memory choices that span them."""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.order import Named, Table


class Cadence(StrEnum):
    """How often parameters are gathered or gradients reduced."""

    USE = "use"
    MICROBATCH = "microbatch"
    STEP = "step"


class ShardUnit(StrEnum):
    """What is cut into shards."""

    FLAT = "flat"
    DIM0 = "dim0"
    WHOLE = "whole"


class State(StrEnum):
    """What may live in host memory."""

    OPTIMIZER = "opt"
    GRADIENT = "grad"
    PARAMETER = "param"


ALL = 0
"""Degree of a shard rule: every member of the sync group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """ZeRO for some parameter classes (none named = all): three degrees over the members of each
    sync group.

    A rule that names lanes holds for these alone. Optimizer states are shared by all that sum, of
    whichever lane. Gradients and parameters of a lane that some rule names are shared by its own
    members: lanes of unlike microbatches gather and reduce at unlike times.

    Args:
        lanes: that it holds for; none named = all.
        optimizer, gradient, parameter: 1 = not sharded, `ALL` = the whole group; each divides the
            one before.
        gather, reduce: cadence of parameter gathers and gradient reductions.
        host: (state, percent) that lives in host memory.
        by_memory: shares follow the holders' free memory instead of being equal.
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
    """A whole strategy on `devices` devices, numbered as the cluster numbers them; `options` of the
    runtime hold for all of it.
    """

    devices: int
    lanes: tuple[Lane, ...]
    orders: tuple[Named | Table, ...]
    shards: tuple[Shards, ...] = ()
    options: Options = ()
