"""The load-balancing loss on PyTorch's own engine, without pipeline stages: counts are added over
all ranks after a forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from shardwright.execute.native.decoder_module import Stage
from shardwright.execute.native.expert_modules import Route
from shardwright.execute.numerics.base.local_tensors import at_least_float32
from shardwright.execute.numerics.experts.load_balancing_loss import (
    balance_loss,
    router_counts,
    token_share_of_loss,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.strategy.grid.grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeBalance:
    """The loss of a rank's microbatches.

    Args:
        routes: the choices of experts of this rank.
        factor: of a microbatch's loss in the step's.
        copies: ranks that count the same tokens.
        parts: ranks among which the value that is reported is divided.
    """

    routes: tuple[Route, ...]
    factor: float
    copies: int
    parts: int

    def begin(self) -> None:
        """From here on routers keep the logits of a forward pass, in the graph of its gradients."""
        for route in self.routes:
            route.seen = []

    def loss(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(what this rank's own tokens have of the loss, for its gradient; this rank's part of the
        value). All ranks call it.
        """
        logits = [one for route in self.routes for one in route.seen or ()]
        for route in self.routes:
            route.seen = None
        shape = self.routes[0].shape
        total = torch.stack([router_counts(one, shape=shape) for one in logits]).sum(0)
        dist.all_reduce(total)
        total = total / self.copies
        own = (
            torch.stack(
                [token_share_of_loss(at_least_float32(one), total, shape=shape) for one in logits]
            ).sum()
            * self.factor
        )
        return own, balance_loss(total, shape=shape) * (self.factor / self.parts)


def native_balance(
    stages: Iterable[Stage], grid: Grid, *, coefficient: float, microbatches: int
) -> NativeBalance | None:
    """The loss of a rank's stages; None where none is computed."""
    routes = tuple(
        module for stage in stages for module in stage.modules() if isinstance(module, Route)
    )
    if not coefficient or not routes:
        return None
    copies = 1 if grid.sp else grid.tp
    return NativeBalance(
        routes=routes, factor=coefficient / microbatches, copies=copies, parts=grid.dp * grid.cp
    )
