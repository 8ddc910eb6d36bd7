"""Seconds of two actions of a device that overlap: kernels beside expert communication."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.cost.kernels.launch_overhead import DISPATCH_SHARE
from shardwright.hardware.catalog.multiprocessors_and_gemm_tiles import MULTIPROCESSORS
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem

Spent: TypeAlias = tuple[FloatArray | float, FloatArray | float, FloatArray | float]
"""Seconds of actions, of them tokens on their way to experts or back, and of them products and
attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationShare:
    """Share of the device that the communication of an overlapped pair takes from its kernels.

    Args:
        share: of the multiprocessors.
        reserved: GEMMs and attention leave it free for as long as they run; else all kernels lose
            it while communication runs.
    """

    share: float
    reserved: bool


def communication_share(problem: Problem) -> CommunicationShare:
    """Share of multiprocessors that the runtime reserves for communication, else DISPATCH_SHARE.

    DeepEP's default where it reserves nothing.
    """
    multiprocessors = MULTIPROCESSORS.get(problem.cluster.node.accelerator.name)
    reserved = problem.runtime.reserved_multiprocessors
    return (
        CommunicationShare(share=reserved / multiprocessors.count, reserved=True)
        if reserved and multiprocessors
        else CommunicationShare(share=DISPATCH_SHARE, reserved=False)
    )


def pair_seconds(
    first_action: Spent, second_action: Spent, taken: CommunicationShare
) -> FloatArray:
    """Seconds of two overlapped actions: kernels, slowed by the communication that hides in them.

        max(kernels + lost, moved, each alone), lost <= moved

    `kernels` and `moved` are of both; `moved` is dispatch and combine alone: collectives of tensor
    and context parallelism stand between kernels of their own action. Kernels lose share x moved to
    communication where it takes its multiprocessors from the kernels beside it; products x share /
    (1 - share) where they are reserved, as a persistent GEMM (`gemms_yield_multiprocessors`) must
    be told beforehand how many it has.
    Kernels that memory limits lose nothing to a reservation.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, sections 3.2.1 (attention, dispatch, experts and
    combine of one beside the other's; the ratio of multiprocessors is set by hand) and 3.5.1 (20 of
    132). Leaves out the order inside the pair, and memory traffic of both.
    """
    kernels = np.maximum(first_action[0] - first_action[1], 0.0) + np.maximum(
        second_action[0] - second_action[1], 0.0
    )
    moved = first_action[1] + second_action[1]
    products = np.minimum(first_action[2] + second_action[2], kernels)
    lost = products * (taken.share / (1.0 - taken.share)) if taken.reserved else taken.share * moved
    return np.asarray(
        np.maximum(
            np.maximum(kernels + np.minimum(lost, moved), moved),
            np.maximum(first_action[0], second_action[0]),
        )
    )


def pair_share(action: Spent, partner: Spent, taken: CommunicationShare) -> FloatArray:
    """Seconds of an overlapped pair attributed to one action, in proportion to its own seconds."""
    total = action[0] + partner[0]
    return np.where(
        action[0] > 0.0,
        action[0] * pair_seconds(action, partner, taken) / np.where(total > 0.0, total, 1.0),
        0.0,
    )
