"""Ranks that pass keys round under PyTorch's autograd; what they find is written to files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from shardwright.execute.native import ring_attention
from shardwright.execute.native.ring_attention import Ring, attend_over_ring
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
)
from shardwright.model.blocks.dense_transformer_operators import core_operator
from shardwright.model.ir.operator import AttentionShape, Operator
from shardwright.program.layout.tensor_layout import Indices
from tests.execute.lockstep import place_of

RANKS, LENGTH, SAMPLES = 3, 24, 2
DEAL: tuple[Indices, ...] = (((0, 4), (20, 24)), ((4, 7), (7, 12)), ((12, 20),))
SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=6, value_dim=6)
CORES: dict[str, dict[str, Any]] = {
    "fused": {},
    "window": {"window": 5},
    "values of another width": {"value_dim": 3},
}


def core_of(variant: str) -> Operator:
    return core_operator("core", source="rotary", shape=replace(SHAPE, **CORES[variant]))


def inputs_of(operator: Operator) -> list[torch.Tensor]:
    """Queries, keys, values and the output's gradient, of all positions."""
    generator = torch.Generator().manual_seed(3)
    sizes = [e.size for e in (*operator.reads, *operator.writes)]
    return [
        torch.randn((SAMPLES, LENGTH, size), generator=generator, dtype=torch.float64)
        for size in sizes
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of a rank.

    Args:
        tensors: its output and gradients.
        again: the same where forward ran again for backward.
        kept: shapes of what is kept for backward.
        sent: elements that it gave to others.
        events: what was begun and computed, in order.
    """

    tensors: list[torch.Tensor]
    again: list[torch.Tensor]
    kept: list[tuple[int, ...]]
    sent: int
    events: list[str]


def _found(variant: str, rank: int, patch: pytest.MonkeyPatch) -> Found:
    operator, ring, events, sent = (
        core_of(variant),
        Ring(ranks=dist.group.WORLD, positions_by_rank=DEAL),
        list[str](),
        list[int](),
    )
    place = place_of(operator, length=LENGTH, device=rank, positions=DEAL[rank])
    *own, grad = (one[:, index_tensor(DEAL[rank], like=one)] for one in inputs_of(operator))

    def told(name: str) -> Callable[..., Any]:
        law = getattr(ring_attention, name)

        def computed(*asked: Any) -> Any:
            events.append(name)
            return law(*asked)

        return computed

    for name in ("attend_to_keys", "attend_to_keys_backward"):
        patch.setattr(ring_attention, name, told(name))
    begin: Callable[[list[dist.P2POp]], list[dist.Work]] = dist.batch_isend_irecv

    def begun(ops: list[dist.P2POp]) -> list[dist.Work]:
        events.append("passed")
        sent.append(prod(ops[0].tensor.shape))
        return begin(ops)

    patch.setattr(dist, "batch_isend_irecv", begun)
    attend = partial(attend_over_ring, place=place, ring=ring)

    def ran(*, again: bool) -> tuple[list[torch.Tensor], list[tuple[int, ...]]]:
        leaves, kept = [one.clone().requires_grad_() for one in own], list[tuple[int, ...]]()

        def keep(one: torch.Tensor) -> torch.Tensor:
            kept.append(tuple(one.shape))
            return one

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            out = checkpoint(attend, *leaves, use_reentrant=False) if again else attend(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)], kept

    tensors, kept = ran(again=False)
    once, given = list(events), sum(sent)
    return Found(tensors=tensors, again=ran(again=True)[0], kept=kept, sent=given, events=once)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    found = {}
    for variant in CORES:
        with pytest.MonkeyPatch.context() as patch:
            found[variant] = _found(variant, rank, patch)
    torch.save(found, Path(folder) / f"rank{rank}")
    dist.destroy_process_group()
