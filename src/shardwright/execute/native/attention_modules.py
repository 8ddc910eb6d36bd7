"""Rotary positions and attention as PyTorch's modules, of whole sequences or of a rank's part of
them (`Context`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint

from shardwright.execute.native.context_parallel_tokens import Context
from shardwright.execute.native.ring_attention import Ring, passed_round
from shardwright.execute.native.torch_private import exchanged, gathered
from shardwright.execute.numerics.attention.attention_by_key_block import score_scale
from shardwright.execute.numerics.attention.attention_operator import temperature_factors
from shardwright.execute.numerics.attention.position_masks import visibility_mask
from shardwright.execute.numerics.base.local_tensors import index_tensor
from shardwright.execute.numerics.positions.rotary_angles import (
    cosines_and_sines,
    rotary_rates,
    rotary_scale,
    rotate_pairs,
    rotated_pair_count,
)
from shardwright.execute.numerics.positions.rotary_operator import join_rotary_keys
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.operator_constants import Settings
from shardwright.program.layout.tensor_layout import Indices


class NativeRotary(nn.Module):  # type: ignore[misc]
    """Queries and keys, or a share of each head, turned by their positions (`numerics.turns`);
    values pass through (arXiv 2104.09864).

    Of latent attention the last elements of a query head are turned, and every key head is joined
    with a part that all share.

    Args:
        stream: over ranks of tp, which have a part of the heads each: how that part comes, whole or
            cut by positions.
    """

    def __init__(self, operator: Operator, *, settings: Settings, context: Context) -> None:
        super().__init__()
        self.width, self.settings, self.context = (
            operator.reads[0].quantum,
            settings.of_layers(local=operator.local),
            context,
        )
        self.stream: tuple[DeviceMesh, Placement] | None = None

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *latent: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """One tensor an extent. latent: what keys and values were made of, and the part of keys
        that is turned.
        """
        if latent:
            shared = latent[1]
            if self.stream is not None:
                # In backward each rank has what its heads give.
                mesh, comes = self.stream
                every = DTensor.from_local(shared, mesh, [comes], run_check=False).redistribute(
                    placements=[Replicate()]
                )
                shared = every.to_local(grad_placements=[Partial()])
            rope = shared.shape[-1]
            cos, sin = self._turns(query, rope // 2)
            key = join_rotary_keys(key, rotate_pairs(shared, cos, sin, width=rope), head=self.width)
            return (
                rotate_pairs(query, cos, sin, width=self.width, start=self.width - rope),
                key,
                value,
            )
        cos, sin = self._turns(query, rotated_pair_count(self.settings, self.width))
        return (
            rotate_pairs(query, cos, sin, width=self.width),
            rotate_pairs(key, cos, sin, width=self.width),
            value,
        )

    def _turns(self, like: torch.Tensor, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
        rates = rotary_rates(
            self.settings, pairs, length=self.context.whole(like), device=like.device
        )
        return cosines_and_sines(
            self.context.positions(like), rates, scale=rotary_scale(self.settings), dtype=like.dtype
        )


class Core(nn.Module):  # type: ignore[misc]
    """softmax(Q K^T) V of the heads that this rank has, causal or in a window; `again`: only its
    inputs are kept for backward.

    Where positions are divided, ranks of ulysses trade heads for positions before and back behind.
    Ranks of the ring pass keys and values round (`ring`), or gather all of them and give the
    gradients of others' back in backward.
    """

    def __init__(
        self, operator: Operator, *, settings: Settings, context: Context, again: bool
    ) -> None:
        super().__init__()
        assert operator.attention is not None
        self.operator, self.shape, self.context, self.again = (
            operator,
            operator.attention,
            context,
            again,
        )
        self.settings, self.scale = settings, score_scale(operator.attention, settings)
        self.temper = settings.temper if operator.tempered else None

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor]:
        """The output of all heads, side by side."""
        if self.temper is not None:
            query = query * temperature_factors(self.context.positions(query), self.temper).to(
                query.dtype
            ).unsqueeze(-1)
        if self.again and torch.is_grad_enabled():
            return (
                checkpoint(
                    self._attend, query, key, value, use_reentrant=False, preserve_rng_state=False
                ),
            )
        return (self._attend(query, key, value),)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        widths, context = (
            (self.shape.head_dim, self.shape.head_dim, self.shape.value_dim),
            self.context,
        )
        q, k, v = (
            x.unflatten(-1, (-1, w)) for x, w in zip((query, key, value), widths, strict=True)
        )
        if context.traders is not None:
            q, k, v = (_traded(x, context.traders) for x in (q, k, v))
        found = (
            self._round(q, k, v, context.ring)
            if context.ring is not None
            else self._at_once(q, k, v)
        )
        if context.traders is not None:
            found = _traded_back(found, context.traders)
        return found.flatten(-2)

    def _round(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: Ring) -> torch.Tensor:
        """(samples, positions, heads, width) of keys that are passed round."""
        query, key, value = (x.flatten(-2) for x in (q, k, v))
        return passed_round(query, key, value, place=self._place(q, k), ring=ring).unflatten(
            -1, (-1, v.shape[-1])
        )

    def _at_once(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(samples, positions, heads, width) of all keys together: the rank's, or gathered."""
        context = self.context
        if context.givers is not None:
            k, v = _all_given(k, v, context.givers)
        if list(context.keys) != sorted(context.keys):
            order = torch.argsort(index_tensor(context.keys, like=k))
            k, v = k[:, order], v[:, order]
        return self._seen(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)

    def _place(self, q: torch.Tensor, k: torch.Tensor) -> OperatorShare:
        """The rank's share of the core: (samples, positions, heads, width) queries and keys, whose
        heads count as all there are.
        """
        heads, kv_heads = q.shape[2], k.shape[2]
        return OperatorShare(
            operator=replace(
                self.operator, attention=replace(self.shape, heads=heads, kv_heads=kv_heads)
            ),
            device=dist.get_rank(),
            samples=((0, q.shape[0]),),
            positions=self.context.queries,
            length=self.context.length,
            reads=(),
            writes=(),
            parameters={},
            settings=self.settings,
            heads=(0, heads),
            kv_heads=(0, kv_heads),
            groups={},
        )

    def _seen(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(samples, heads, queries, width); keys are those of all positions, in order."""
        parts = []
        for first, end, low in _runs(self.context.queries or ((0, q.shape[2]),)):
            # Queries in a row see no key behind the last of them: PyTorch's kernels know that form
            # of a causal mask.
            high = low + end - first
            mask = self._mask(low, high, on=q.device)
            some, keys, values = q[:, :, first:end], k[:, :, :high], v[:, :, :high]
            grouped = some.shape[1] != keys.shape[1]
            parts.append(
                functional.scaled_dot_product_attention(
                    some,
                    keys,
                    values,
                    attn_mask=mask,
                    is_causal=mask is None,
                    scale=self.scale,
                    enable_gqa=grouped,
                )
            )
        return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]

    def _mask(self, low: int, high: int, *, on: torch.device) -> torch.Tensor | None:
        """The mask of queries from `low` to `high` over the keys before `high`; None for a plain
        causal mask over as many keys.
        """
        if self.shape.window:
            keys = torch.arange(high, device=on)
            return visibility_mask(self.shape, keys[low:].unsqueeze(-1) - keys, keys)
        return causal_lower_right(high - low, high) if low else None


def _runs(positions: Indices) -> Iterator[tuple[int, int, int]]:
    """(first, end, position of the first) of tokens whose positions follow one another."""
    first = end = low = 0
    for start, stop in positions:
        if end > first and start != low + end - first:
            yield first, end, low
            first = end
        if end == first:
            low = start
        end += stop - start
    yield first, end, low


def _traded(x: torch.Tensor, ranks: dist.ProcessGroup) -> torch.Tensor:
    """(samples, positions, heads, width): a part of the heads, of all ranks' positions. Heads that
    are too few come as copies.
    """
    size = ranks.size()
    if x.shape[2] % size:
        x = x.repeat_interleave(size // x.shape[2], dim=2)
    came = _each(x.unflatten(2, (size, -1)).movedim(2, 0), ranks)
    return came.movedim(0, 1).flatten(1, 2)


def _traded_back(x: torch.Tensor, ranks: dist.ProcessGroup) -> torch.Tensor:
    """The inverse of `_traded`."""
    return (
        _each(x.unflatten(1, (ranks.size(), -1)).movedim(1, 0), ranks).movedim(0, 2).flatten(2, 3)
    )


def _each(x: torch.Tensor, ranks: dist.ProcessGroup) -> torch.Tensor:
    """(ranks, ..): one tensor for each rank, and from each."""
    one = (1,) * ranks.size()
    return exchanged(x, given=one, came=one, group=ranks)


def _all_given(
    key: torch.Tensor, value: torch.Tensor, ranks: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (samples, positions, heads, width) of all ranks' positions."""
    both = gathered(torch.cat([key, value], dim=-1).movedim(1, 0), group=ranks).movedim(0, 1)
    return both[..., : key.shape[-1]], both[..., key.shape[-1] :]
