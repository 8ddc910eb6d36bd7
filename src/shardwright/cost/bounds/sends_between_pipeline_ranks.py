"""Sends between pipeline ranks: the network tiers they cross, their picoseconds and link shares."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, lcm

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.seconds_to_event_simulation_picoseconds import (
    SHARE_ROUNDING,
    picoseconds,
)
from shardwright.cost.step.strategy_task_seconds import StepCosts
from shardwright.hardware.link_and_network_tier import Tier
from shardwright.strategy.grid.parallelism_grid import Grid


@lru_cache(maxsize=1024)
def border_tiers(devices: int, ranks: int, stride: int, tiers: tuple[Tier, ...]) -> BoolArray:
    """(2, ranks, tiers) True at the outermost tier of a device's send: [0] to next rank, [1] back.

    First to the next rank, then to the one before (round the ring).

    Args:
        stride: devices from one rank to the next.
    """
    device = _one_of_each(
        devices, ranks, stride, lcm(*(t.num_devices for t in tiers if t.num_devices < devices))
    )
    rank = device // stride % ranks
    crosses_tier = np.zeros((2, ranks, len(tiers)), dtype=np.bool_)
    for way, step in enumerate((1, -1)):
        partner = device + ((rank + step) % ranks - rank) * stride
        crossed = np.full(len(device), len(tiers) - 1)
        for index in range(len(tiers) - 2, -1, -1):
            crossed[device // tiers[index].num_devices == partner // tiers[index].num_devices] = (
                index
            )
        crosses_tier[way, rank, crossed] = True
    return crosses_tier


def _one_of_each(devices: int, ranks: int, stride: int, period: int) -> IntArray:
    """Devices that stand for all: every device of a pipeline rank has one placed the same way.

    Placed the same way in the units of the network.

    Args:
        stride: devices from one rank to the next.
        period: devices after which the units repeat.
    """
    pipeline = ranks * stride
    pipelines = min(devices // pipeline, period // gcd(period, pipeline))
    first_devices = (
        np.arange(pipelines, dtype=np.int64)[:, None] * pipeline + np.arange(ranks) * stride
    )
    return (first_devices.reshape(-1, 1) + np.arange(min(stride, period))).reshape(-1)


def border_picoseconds(
    costs: StepCosts, grid: Grid, tiers: tuple[Tier, ...], *, crossed: BoolArray | None = None
) -> tuple[IntArray, IntArray]:
    """Each chunk's picoseconds to send forward, and backward, at the fastest tier a device crosses.

    The border of the fastest replica counts.

    A chunk's gradient sent back is as large as its input.

    Args:
        crossed: the tiers that devices of each rank send across, as `border_tiers` has them of all;
            None = of all.
    """
    rank = np.arange(len(costs.contents)) % grid.pp
    crossed = (
        border_tiers(grid.devices, grid.pp, grid.strides()["pp"], tiers)
        if crossed is None
        else crossed
    )
    return fastest_tier_picoseconds(costs.border_s, crossed[0, rank]), fastest_tier_picoseconds(
        np.roll(costs.border_s, 1, axis=0), crossed[1, rank]
    )


def fastest_tier_picoseconds(border_s: FloatArray, crossed: BoolArray) -> IntArray:
    """(n,) picoseconds from (n, tiers) seconds at the fastest `crossed` tier; int64 max for none.

    An inner tier may be the slower one (cards behind a host bridge on a fast network).
    """
    fastest_picoseconds: IntArray = np.where(
        crossed, picoseconds(border_s), np.iinfo(np.int64).max
    ).min(axis=-1)
    return fastest_picoseconds


def border_shares(costs: StepCosts, grid: Grid, tiers: tuple[Tier, ...]) -> FloatArray:
    """(2, chunks) link share that gathers and reductions take; 0 if replicas' sends differ in tier.

    Forward and backward; the rank's own gathers and reductions, while they run.

    0 where replicas cross different tiers there: the replica that is ahead reduces, and sends
    beside it, later than it could.
    """
    crossed = border_tiers(grid.devices, grid.pp, grid.strides()["pp"], tiers)
    alike = crossed.sum(axis=-1).max() == 1
    share = np.clip(crossed @ costs.shares - SHARE_ROUNDING, 0.0, 1.0) * alike
    return np.ascontiguousarray(share[:, np.arange(len(costs.contents)) % grid.pp])
