"""Attention of a rank's queries to keys and values that the ranks of a ring pass round, as a
function of autograd.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from shardwright.execute.numerics.attention.attention_by_key_block import (
    attend_to_keys,
    attend_to_keys_backward,
    merge_heads,
    split_heads,
)
from shardwright.execute.numerics.attention.key_exchange import KeyBlock
from shardwright.execute.numerics.base.local_tensors import at_least_float32
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Indices, count


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Ranks that pass their keys and values to the next one.

    Args:
        ranks: in order.
        dealt: positions of the keys of each.
    """

    ranks: dist.ProcessGroup
    dealt: tuple[Indices, ...]

    def held(self, step: int) -> Indices:
        """Positions of the keys that this rank has once all have travelled so many hops."""
        return self.dealt[(self.ranks.rank() - step) % len(self.dealt)]

    def passed(self, tensor: torch.Tensor, *, positions: Indices) -> _Passing:
        """Begin to send a tensor (samples, positions, ..) to the rank behind, and to receive one of
        `positions` from the rank before.
        """
        own, size = self.ranks.rank(), len(self.dealt)
        behind, before = (dist.get_global_rank(self.ranks, (own + way) % size) for way in (1, -1))
        given = tensor.contiguous()
        came = given.new_empty((given.shape[0], count(positions), *given.shape[2:]))
        both = [
            dist.P2POp(dist.isend, given, behind, self.ranks),
            dist.P2POp(dist.irecv, came, before, self.ranks),
        ]
        return _Passing(works=dist.batch_isend_irecv(both), given=given, came=came)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passing:
    """A tensor on its way to the rank behind, which stays until it is there, and one that comes."""

    works: list[dist.Work]
    given: torch.Tensor
    came: torch.Tensor

    def ended(self) -> torch.Tensor:
        """The tensor that arrived."""
        for work in self.works:
            work.wait()
        return self.came


def passed_round(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, place: OperatorShare, ring: Ring
) -> torch.Tensor:
    """The output (samples, positions, heads x width of values) of a rank's queries over the keys of
    all ranks.

    Each block of keys is attended to when it arrives (`attention_by_key_block`), while the next one
    is on its way. For backward the output and the logarithms of its denominators are kept beside
    what the rank itself
    had: keys pass by again, and their gradients travel with them, to which each rank adds what its
    queries give.

    Args:
        query, key, value: (samples, positions, heads x width).
        place: what heads of which positions they are.

    Source: Liu et al. 2023 (arXiv 2310.01889).
    """
    found: torch.Tensor = _Round.apply(query, key, value, place, ring)
    return found


class _Round(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        place: OperatorShare,
        ring: Ring,
    ) -> torch.Tensor:
        held, widths, made = torch.cat([key, value], dim=-1), (key.shape[-1], value.shape[-1]), None
        for step in range(len(ring.dealt)):
            coming = _next(ring, held, step)
            made = attend_to_keys(place, query, _keys(held, widths, ring.held(step)), made)
            held = coming.ended() if coming is not None else held
        assert made is not None, "a ring has ranks"
        out = merge_heads(made[0].to(query.dtype))
        ctx.place, ctx.ring = place, ring
        ctx.save_for_backward(query, key, value, out, made[1])
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, normal = ctx.saved_tensors
        place, ring = ctx.place, ctx.ring
        held, widths = torch.cat([key, value], dim=-1), (key.shape[-1], value.shape[-1])
        made, back = (split_heads(place, out), normal), split_heads(place, grad)
        dq, own, travelling = at_least_float32(torch.zeros_like(query)), None, None
        for step in range(len(ring.dealt)):
            coming = _next(ring, held, step)
            more, found = attend_to_keys_backward(
                place, query, _keys(held, widths, ring.held(step)), made, back
            )
            dq, both = dq + more, torch.cat([found.key, found.value], dim=-1)
            if travelling is not None:
                both = both + travelling.ended()
            if step:
                travelling = ring.passed(both, positions=ring.held(step + 1))
            else:
                own = both
            held = coming.ended() if coming is not None else held
        assert own is not None, "a ring has ranks"
        dk, dv = (own if travelling is None else own + travelling.ended()).split(widths, dim=-1)
        return dq.to(query.dtype), dk, dv, None, None


def _next(ring: Ring, held: torch.Tensor, step: int) -> _Passing | None:
    """The next block of keys on its way; None: this one is the last."""
    return ring.passed(held, positions=ring.held(step + 1)) if step + 1 < len(ring.dealt) else None


def _keys(held: torch.Tensor, widths: tuple[int, int], positions: Indices) -> KeyBlock:
    key, value = held.split(widths, dim=-1)
    return KeyBlock(key=key, value=value, positions=positions)
