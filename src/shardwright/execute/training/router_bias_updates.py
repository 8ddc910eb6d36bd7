"""The update of router biases after each step: expert load balancing without an auxiliary loss.

    b_e += rate x sign(mean load - load_e)

load_e: number of tokens of the whole step (all microbatches, all devices) that were routed to
expert e. The mean is over the experts of the same router. The bias is added to the scores only for
the top-k choice of experts, and not to the weights of their outputs, so it has no gradient.
Sources: Wang et al. 2024, Auxiliary-loss-free load balancing strategy for mixture-of-experts (arXiv
2408.15664), algorithm 1; DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437), section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from shardwright.execute.device_state.stored_parameter_parts import Key, ParameterStore
from shardwright.execute.transport.communication_requests import Reduce, Task


def updated_bias(bias: torch.Tensor, loads: torch.Tensor, *, rate: float) -> torch.Tensor:
    """Router bias after a step: plus rate x sign(mean load - load) for each expert.

    Args:
        bias: (experts,) the bias before the update.
        loads: (experts,) number of tokens of the step that were routed to each expert.
        rate: the amount that is added to or subtracted from each bias.

    Example: four experts have loads 5, 1, 3 and 3, with mean 3. At a rate of 0.1, the function adds
    -0.1, +0.1, 0 and 0.
    """
    # Compare the sum with experts x load: both are integers in float64 and so exact. The mean need
    # not be an integer.
    return bias + rate * torch.sign(loads.sum() - loads.numel() * loads).to(bias.dtype)


def update_router_biases(
    devices: Sequence[int],
    store: ParameterStore,
    counts: Mapping[Key, torch.Tensor],
    *,
    sizes: Mapping[Key, int],
    rate: float,
) -> Task[None]:
    """All-reduce the token counts of experts, and update this device's router biases.

    Args:
        devices: all devices of the plan.
        store: the parameters of this device.
        counts: by bias parameter, (experts,) tokens of this device that were routed to each expert.
        sizes: by bias parameter, the number of experts, for every router of the model.
        rate: see `updated_bias`.
    """
    empty = torch.zeros(0, dtype=torch.float64, device=store.on)
    parts = [counts[key] if key in counts else empty.new_zeros(size) for key, size in sizes.items()]
    total = torch.cat([empty, *parts])
    if len(devices) > 1:
        total = cast(
            torch.Tensor, (yield Reduce(group=tuple(devices), tensor=total, key="expert loads"))
        )
    for key, loads in zip(sizes, total.split(list(sizes.values())), strict=True):
        for stored in store.held.get(key, {}).values():
            stored.value = updated_bias(stored.value, loads, rate=rate)
