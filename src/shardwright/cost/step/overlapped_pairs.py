"""Two actions of a device that run overlapped: one's kernels beside the other's tokens on their way
to experts and back.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.cost.kernels.launch_overhead import DISPATCH_SHARE
from shardwright.hardware.catalog.multiprocessors import MULTIPROCESSORS
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem

Spent: TypeAlias = tuple[FloatArray | float, FloatArray | float, FloatArray | float]
"""Seconds of actions, of them tokens on their way to experts or back, and of them products and
attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a pair's communication takes from its kernels.

    Args:
        share: of the multiprocessors.
        reserved: products and attention leave it free for as long as they run; else all kernels
            lose it while communication runs.
    """

    share: float
    reserved: bool


def taken_of(problem: Problem) -> Taken:
    """By the runtime; as DeepEP does unless told otherwise where it reserves nothing."""
    known = MULTIPROCESSORS.get(problem.cluster.node.accelerator.name)
    reserved = problem.runtime.reserved_multiprocessors
    return (
        Taken(share=reserved / known.count, reserved=True)
        if reserved and known
        else Taken(share=DISPATCH_SHARE, reserved=False)
    )


def pair_seconds(one: Spent, other: Spent, taken: Taken) -> FloatArray:
    """Seconds of two actions that run overlapped, at most those of both one after the other.

        max(kernels + lost, moved, each alone), lost <= moved

    `kernels` and `moved` are of both; `moved` is dispatch and combine alone: collectives of tensor
    and context parallelism stand between kernels of their own action. What the kernels lose to
    communication: share x moved where it takes its multiprocessors from what runs beside it;
    products x share / (1 - share) where they are reserved, as a persistent product
    (`overlap.products_yield`) must be told beforehand how many it has. Kernels that memory limits
    lose nothing to a reservation.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, sections 3.2.1 (attention, dispatch, experts and
    combine of one beside the other's; the ratio of multiprocessors is set by hand) and 3.5.1 (20 of
    132). Leaves out the order inside the pair, and what both take from memory.
    """
    kernels = np.maximum(one[0] - one[1], 0.0) + np.maximum(other[0] - other[1], 0.0)
    moved = one[1] + other[1]
    products = np.minimum(one[2] + other[2], kernels)
    lost = products * (taken.share / (1.0 - taken.share)) if taken.reserved else taken.share * moved
    return np.asarray(
        np.maximum(
            np.maximum(kernels + np.minimum(lost, moved), moved), np.maximum(one[0], other[0])
        )
    )


def pair_share(one: Spent, other: Spent, taken: Taken) -> FloatArray:
    """An action's share of the seconds of an overlapped pair: as its own are of both."""
    total = one[0] + other[0]
    return np.where(
        one[0] > 0.0,
        one[0] * pair_seconds(one, other, taken) / np.where(total > 0.0, total, 1.0),
        0.0,
    )
