"""The linear program over replicas of shapes: prices of a device of each pool, of a node and of a
replica.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from shardwright.arrays import FloatArray


class Prices(NamedTuple):
    """Dual prices of the linear program, in samples for one more of each: (pools,) a device; a node
    that may be filled; a replica, negative where plans must have more of them than is good.
    """

    devices: FloatArray
    nodes: float
    replicas: float


class Room(NamedTuple):
    """Right-hand sides of the linear program: (pools,) devices; nodes that may be filled; least and
    most replicas.
    """

    devices: FloatArray
    nodes: float
    replicas: tuple[int, int]


def best_prices(use: FloatArray, nodes: FloatArray, worth: FloatArray, room: Room) -> Prices:
    """Prices at which all that there is costs as much as the most samples that replicas can do (the
    dual solution).

        max sum x_s worth_s   s.t.  sum x_s use_sk <= devices_k,  sum x_s nodes_s <= nodes,
                                    low <= sum x_s <= high

    Where so many replicas find no room whatever they are worth, prices at which all costs nothing.

    Args:
        use: (shapes, pools).
        nodes, worth: (shapes,).
    """
    ones = np.ones(len(worth))
    rows = np.concatenate([use.T, [nodes, ones, -ones]])
    low, high = room.replicas
    found = linprog(
        -worth,
        A_ub=rows,
        b_ub=np.array([*room.devices, room.nodes, high, -low], dtype=np.float64),
        method="highs",
    )
    if found.x is None:
        return _no_room(use, nodes, float(worth.max()), room)
    prices = np.maximum(-found.ineqlin.marginals, 0.0)
    return Prices(
        devices=prices[:-3], nodes=float(prices[-3]), replicas=float(prices[-2] - prices[-1])
    )


def _no_room(use: FloatArray, nodes: FloatArray, most: float, room: Room) -> Prices:
    """Prices p of devices and nodes with p use >= 1 for every shape at which all that there is
    costs less than the least number of replicas, times what makes up for the most that a replica is
    worth.
    """
    found = linprog(
        -np.ones(len(nodes)),
        A_ub=np.concatenate([use.T, [nodes]]),
        b_ub=np.array([*room.devices, room.nodes]),
        method="highs",
    )
    prices = np.maximum(-found.ineqlin.marginals, 0.0)
    low = room.replicas[0]
    missing = low - float(prices[:-1] @ room.devices + prices[-1] * room.nodes)
    scale = most * low / missing if missing > 0 else 0.0
    return Prices(
        devices=scale * prices[:-1], nodes=float(scale * prices[-1]), replicas=most - scale
    )
