"""The update of routers' biases: load balancing of experts without a loss.

    b_e += rate x sign(mean load - load_e)

load_e: tokens of the whole step (all microbatches, all devices) that chose expert e; the mean is
over the router's experts. The bias counts in the choice of experts alone, so it has no gradient.
Sources: Wang et al. 2024, Auxiliary-loss-free load balancing strategy for mixture-of-experts (arXiv
2408.15664), algorithm 1; DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437), section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from shardwright.execute.shares.parameters import Key, ParameterStore
from shardwright.execute.transport.requests import Reduce, Task


def moved_bias(bias: torch.Tensor, loads: torch.Tensor, *, rate: float) -> torch.Tensor:
    """The bias behind a step.

    Args:
        loads: (experts,) tokens of the step that chose each expert.

    Worked: loads 5 1 3 3 of four experts, whose mean is 3, at a rate of 0.1: -0.1 +0.1 0 0 is
    added.
    """
    # Whole numbers in float64, which compare exactly; a mean need not be one.
    return bias + rate * torch.sign(loads.sum() - loads.numel() * loads).to(bias.dtype)


def move_biases(
    devices: Sequence[int],
    store: ParameterStore,
    counts: Mapping[Key, torch.Tensor],
    *,
    sizes: Mapping[Key, int],
    rate: float,
) -> Task[None]:
    """Add the counts of all devices, and move the biases that a device holds.

    Args:
        devices: all of the plan.
        store, counts: of the device, and of its tokens.
        sizes: experts of every router, by its bias.
    """
    none = torch.zeros(0, dtype=torch.float64, device=store.on)
    parts = [counts[key] if key in counts else none.new_zeros(size) for key, size in sizes.items()]
    total = torch.cat([none, *parts])
    if len(devices) > 1:
        total = cast(
            torch.Tensor, (yield Reduce(group=tuple(devices), tensor=total, key="expert loads"))
        )
    for key, loads in zip(sizes, total.split(list(sizes.values())), strict=True):
        for held in store.held.get(key, {}).values():
            held.value = moved_bias(held.value, loads, rate=rate)
