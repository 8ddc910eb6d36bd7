"""Rotary positions and attention as PyTorch modules, with context parallelism."""

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

from shardwright.execute.native.private_torch_api import all_gather_rows, all_to_all_rows
from shardwright.execute.native.rank_samples_and_positions import ContextParallelism
from shardwright.execute.native.ring_attention import Ring, attend_over_ring
from shardwright.execute.numerics.attention.attention_by_key_block import score_scale
from shardwright.execute.numerics.attention.attention_operator import temperature_factors
from shardwright.execute.numerics.attention.position_masks import visibility_mask
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
)
from shardwright.execute.numerics.positions.rotary_angles import (
    cosines_and_sines,
    rotary_rates,
    rotary_scale,
    rotate_pairs,
    rotated_pair_count,
)
from shardwright.execute.numerics.positions.rotary_operator import join_rotary_keys
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator
from shardwright.program.layout.tensor_layout import Indices


class NativeRotary(nn.Module):  # type: ignore[misc]
    """Rotary position embedding of queries and keys, or of a share of each head.

    Values pass through (`numerics.positions`, arXiv 2104.09864).

    In latent attention, the last elements of a query head are rotated, and every key head is joined
    with a rotated part that all heads share.

    Args:
        stream: mesh of tp ranks and the placement in which the shared part arrives: replicated, or
            sharded by positions.
    """

    def __init__(
        self, operator: Operator, *, settings: Settings, context: ContextParallelism
    ) -> None:
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
        """Rotate queries and keys by position: (query, key, value); a latent part joins each key.

        `latent`: the latents, and the part of the keys that is rotated.
        """
        if latent:
            shared = latent[1]
            if self.stream is not None:
                # In backward each rank has the partial gradient of its own heads.
                mesh, placement = self.stream
                replicated = DTensor.from_local(
                    shared, mesh, [placement], run_check=False
                ).redistribute(placements=[Replicate()])
                shared = replicated.to_local(grad_placements=[Partial()])
            rope = shared.shape[-1]
            cos, sin = self._cosines_and_sines(query, rope // 2)
            key = join_rotary_keys(key, rotate_pairs(shared, cos, sin, width=rope), head=self.width)
            return (
                rotate_pairs(query, cos, sin, width=self.width, start=self.width - rope),
                key,
                value,
            )
        cos, sin = self._cosines_and_sines(query, rotated_pair_count(self.settings, self.width))
        return (
            rotate_pairs(query, cos, sin, width=self.width),
            rotate_pairs(key, cos, sin, width=self.width),
            value,
        )

    def _cosines_and_sines(
        self, like: torch.Tensor, pairs: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of `pairs` rotation angles for the rank's positions."""
        rates = rotary_rates(
            self.settings, pairs, length=self.context.sequence_length(like), device=like.device
        )
        return cosines_and_sines(
            self.context.positions(like), rates, scale=rotary_scale(self.settings), dtype=like.dtype
        )


class NativeAttention(nn.Module):  # type: ignore[misc]
    """Attention softmax(Q K^T) V of this rank's heads, causal or in a window.

    `again`: only its inputs are kept for backward.

    Under context parallelism, Ulysses ranks exchange heads for positions by all-to-all before
    attention and back after it. Ring ranks pass keys and values around (`ring_attention`), or
    gather all of them and reduce-scatter their gradients in backward.
    """

    def __init__(
        self, operator: Operator, *, settings: Settings, context: ContextParallelism, again: bool
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
        """Attention of the rank's heads, side by side in the last dim of inputs and output."""
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
        """Context-parallel attention: Ulysses exchange of heads, then ring or gathered keys."""
        widths, context = (
            (self.shape.head_dim, self.shape.head_dim, self.shape.value_dim),
            self.context,
        )
        q, k, v = (
            x.unflatten(-1, (-1, w)) for x, w in zip((query, key, value), widths, strict=True)
        )
        if context.head_exchange_group is not None:
            q, k, v = (_heads_for_positions(x, context.head_exchange_group) for x in (q, k, v))
        output = (
            self._attend_over_ring(q, k, v, context.ring)
            if context.ring is not None
            else self._attend_to_all_keys(q, k, v)
        )
        if context.head_exchange_group is not None:
            output = _positions_for_heads(output, context.head_exchange_group)
        return output.flatten(-2)

    def _attend_over_ring(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: Ring
    ) -> torch.Tensor:
        """Ring attention: output (samples, positions, heads, width), with keys passed around."""
        query, key, value = (x.flatten(-2) for x in (q, k, v))
        return attend_over_ring(
            query, key, value, place=self._operator_share(q, k), ring=ring
        ).unflatten(-1, (-1, v.shape[-1]))

    def _attend_to_all_keys(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Attention to all keys at once, local or gathered: (samples, positions, heads, width)."""
        context = self.context
        if context.key_gather_group is not None:
            k, v = _gather_keys_and_values(k, v, context.key_gather_group)
        if list(context.keys) != sorted(context.keys):
            order = torch.argsort(index_tensor(context.keys, like=k))
            k, v = k[:, order], v[:, order]
        return self._masked_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        ).transpose(1, 2)

    def _operator_share(self, q: torch.Tensor, k: torch.Tensor) -> OperatorShare:
        """Share of the attention operator narrowed to the rank's local heads, numbered from 0."""
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

    def _masked_attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention with keys of all positions in order: (samples, heads, queries, width)."""
        parts = []
        for first, end, low in _runs(self.context.queries or ((0, q.shape[2]),)):
            # Consecutive queries read no key after the last query: PyTorch's kernels support this
            # lower-right causal mask.
            high = low + end - first
            mask = self._mask(low, high, on=q.device)
            queries, keys, values = q[:, :, first:end], k[:, :, :high], v[:, :, :high]
            grouped = queries.shape[1] != keys.shape[1]
            parts.append(
                functional.scaled_dot_product_attention(
                    queries,
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
        """Mask of queries `low` to `high` over keys before `high`; None if it is plainly causal."""
        if self.shape.window:
            keys = torch.arange(high, device=on)
            return visibility_mask(self.shape, keys[low:].unsqueeze(-1) - keys, keys)
        return causal_lower_right(high - low, high) if low else None


def _runs(positions: Indices) -> Iterator[tuple[int, int, int]]:
    """(first index, end index, first position) of each run of tokens at consecutive positions."""
    first = end = low = 0
    for start, stop in positions:
        if end > first and start != low + end - first:
            yield first, end, low
            first = end
        if end == first:
            low = start
        end += stop - start
    yield first, end, low


def _heads_for_positions(x: torch.Tensor, ranks: dist.ProcessGroup) -> torch.Tensor:
    """All-to-all from positions to heads: a part of the heads, for all ranks' positions.

    (samples, positions, heads, width). If there are fewer heads than ranks, heads are copied.
    """
    size = ranks.size()
    if x.shape[2] % size:
        x = x.repeat_interleave(size // x.shape[2], dim=2)
    received = _exchange_slices(x.unflatten(2, (size, -1)).movedim(2, 0), ranks)
    return received.movedim(0, 1).flatten(1, 2)


def _positions_for_heads(x: torch.Tensor, ranks: dist.ProcessGroup) -> torch.Tensor:
    """Inverse of `_heads_for_positions`: all heads, for the rank's own positions."""
    return (
        _exchange_slices(x.unflatten(1, (ranks.size(), -1)).movedim(1, 0), ranks)
        .movedim(0, 2)
        .flatten(2, 3)
    )


def _exchange_slices(x: torch.Tensor, ranks: dist.ProcessGroup) -> torch.Tensor:
    """All-to-all of (ranks, ..): send one slice to each rank and receive one from each."""
    one_row_each = (1,) * ranks.size()
    return all_to_all_rows(x, send_counts=one_row_each, receive_counts=one_row_each, group=ranks)


def _gather_keys_and_values(
    key: torch.Tensor, value: torch.Tensor, ranks: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """All-gather keys and values (samples, positions, heads, width) over positions."""
    both = all_gather_rows(torch.cat([key, value], dim=-1).movedim(1, 0), group=ranks).movedim(0, 1)
    return both[..., : key.shape[-1]], both[..., key.shape[-1] :]
