"""Load-balancing loss on PyTorch's own engine without pipeline stages.

Counts are summed over all ranks after a forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from shardwright.execute.native.decoder_stage_as_torch_modules import NativeStage
from shardwright.execute.native.expert_modules import NativeRouter
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
)
from shardwright.execute.numerics.experts.load_balancing_loss import (
    balance_loss,
    router_counts,
    token_share_of_loss,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.grid.parallelism_grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeBalance:
    """Load-balancing loss of a rank's microbatches.

    Args:
        routes: the router modules of this rank.
        factor: factor of a microbatch's loss in the step's loss.
        copies: number of ranks that count the same tokens.
        parts: number of ranks over which the reported value is divided.
    """

    routes: tuple[NativeRouter, ...]
    factor: float
    copies: int
    parts: int

    def begin(self) -> None:
        """Make the routers keep their logits in the next forward pass, for the balancing loss."""
        for route in self.routes:
            route.seen = []

    def loss(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(load-balancing loss of this rank's tokens, for backward; its part of the reported loss).

        All ranks call it, after a forward pass.
        """
        logits = [router_logits for route in self.routes for router_logits in route.seen or ()]
        for route in self.routes:
            route.seen = None
        shape = self.routes[0].shape
        total = torch.stack(
            [router_counts(router_logits, shape=shape) for router_logits in logits]
        ).sum(0)
        dist.all_reduce(total)
        total = total / self.copies
        local_loss = (
            torch.stack(
                [
                    token_share_of_loss(at_least_float32(router_logits), total, shape=shape)
                    for router_logits in logits
                ]
            ).sum()
            * self.factor
        )
        return local_loss, balance_loss(total, shape=shape) * (self.factor / self.parts)


def native_balance(
    stages: Iterable[NativeStage], grid: Grid, *, coefficient: float, microbatches: int
) -> NativeBalance | None:
    """Create the load-balancing loss of a rank's stages; None if the run has none."""
    routes = tuple(
        module for stage in stages for module in stage.modules() if isinstance(module, NativeRouter)
    )
    if not coefficient or not routes:
        return None
    copies = 1 if grid.sp else grid.tp
    return NativeBalance(
        routes=routes, factor=coefficient / microbatches, copies=copies, parts=grid.dp * grid.cp
    )
