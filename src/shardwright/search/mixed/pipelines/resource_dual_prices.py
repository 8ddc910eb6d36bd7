"""Linear program over replicas of pipeline shapes: dual prices of devices, nodes and replicas."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from shardwright.arrays import FloatArray


class Prices(NamedTuple):
    """Dual prices of the linear program, in samples for one more of each resource.

    Args:
        devices: (pools,) of a device.
        nodes: of a node that may be filled.
        replicas: of a replica, negative where plans must have more of them than is best.
    """

    devices: FloatArray
    nodes: float
    replicas: float


class ResourceLimits(NamedTuple):
    """Right-hand sides of the linear program: devices, nodes and replicas that plans may use.

    Args:
        devices: (pools,) devices of each pool.
        nodes: nodes that may be filled.
        replicas: fewest and most replicas.
    """

    devices: FloatArray
    nodes: float
    replicas: tuple[int, int]


def best_prices(
    use: FloatArray, nodes: FloatArray, worth: FloatArray, limits: ResourceLimits
) -> Prices:
    """Dual prices of a device, a node and a replica, in samples, from the program for most samples.

        max sum x_s worth_s   s.t.  sum x_s use_sk <= devices_k,  sum x_s nodes_s <= nodes,
                                    low <= sum x_s <= high

    Where the least number of replicas does not fit, prices under which all resources cost nothing.

    Args:
        use: (shapes, pools) devices of a replica.
        nodes: (shapes,) nodes that a replica fills.
        worth: (shapes,) samples that a replica completes by the limit.
    """
    ones = np.ones(len(worth))
    rows = np.concatenate([use.T, [nodes, ones, -ones]])
    low, high = limits.replicas
    found = linprog(
        -worth,
        A_ub=rows,
        b_ub=np.array([*limits.devices, limits.nodes, high, -low], dtype=np.float64),
        method="highs",
    )
    if found.x is None:
        return _infeasibility_prices(use, nodes, float(worth.max()), limits)
    prices = np.maximum(-found.ineqlin.marginals, 0.0)
    return Prices(
        devices=prices[:-3], nodes=float(prices[-3]), replicas=float(prices[-2] - prices[-1])
    )


def _infeasibility_prices(
    use: FloatArray, nodes: FloatArray, max_worth: float, limits: ResourceLimits
) -> Prices:
    """Prices that prove that the least number of replicas does not fit.

    Prices p of devices and nodes with p use >= 1 for every shape, at which all resources cost less
    than the least number of replicas. They are scaled so that the total covers the most samples
    that a replica completes.
    """
    found = linprog(
        -np.ones(len(nodes)),
        A_ub=np.concatenate([use.T, [nodes]]),
        b_ub=np.array([*limits.devices, limits.nodes]),
        method="highs",
    )
    prices = np.maximum(-found.ineqlin.marginals, 0.0)
    low = limits.replicas[0]
    missing = low - float(prices[:-1] @ limits.devices + prices[-1] * limits.nodes)
    scale = max_worth * low / missing if missing > 0 else 0.0
    return Prices(
        devices=scale * prices[:-1], nodes=float(scale * prices[-1]), replicas=max_worth - scale
    )
