"""Move a plan of one device pool to the pool's devices in the whole cluster."""

from __future__ import annotations

from dataclasses import replace

from shardwright.program.training_problem import Problem
from shardwright.search.mixed.stages.device_pools import DevicePool
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan


def move_to_pool(plan: Plan, problem: Problem, pool: DevicePool) -> Plan:
    """A plan of a pool alone, moved to the devices of the pool in the whole cluster."""
    lanes = tuple(
        replace(
            lane,
            stages=tuple(replace(stage, base=stage.base + pool.first) for stage in lane.stages),
        )
        for lane in plan.lanes
    )
    orders = tuple(
        (
            order
            if isinstance(order, NamedOrder)
            else replace(
                order, rows=tuple((device + pool.first, row) for device, row in order.rows)
            )
        )
        for order in plan.orders
    )
    assert pool.first + plan.devices <= problem.cluster.num_devices
    return replace(plan, devices=pool.first + plan.devices, lanes=lanes, orders=orders)
