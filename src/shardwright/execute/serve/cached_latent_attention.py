"""Latent attention (MLA) over a cache of latents, with expanded keys or in absorbed form.

The cache holds the normed latent and the rotated part of the keys, one for all heads (DeepSeek-V2,
arXiv 2405.04434, section 2.1.2). In absorbed form a query reads latents directly: q (W c) = (q W)
c, and the output latent is expanded to a value once. With L elements a latent and R rotated
elements, this is attention with one key head of L + R elements, whose values are its first L
elements.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from shardwright.execute.numerics.attention.attention_operator import Attention
from shardwright.execute.numerics.attention.unfused_attention import shape_of
from shardwright.execute.numerics.base.operator_protocol import (
    Forward,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.layers.linear import Linear, weight_and_bias_names
from shardwright.execute.numerics.positions.rotary_operator import Rotary, join_rotary_keys
from shardwright.execute.serve.cached_operators import (
    ByPart,
    LatentReads,
    LocalPart,
    ServedLayer,
    cached_operator,
    local_parts,
    require_stable_rotary,
)
from shardwright.execute.serve.device_kv_cache import CacheKey
from shardwright.execute.serve.kv_cache_blocks import key_reach
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.absorbed_latent_attention_sizes import latent_of
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import AttentionShape, Operator, OperatorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentOperators:
    """Names of a block's latent-attention operators, and the shape in absorbed form.

    `up` expands latents, `rotary` rotates keys, `core` computes attention.
    """

    up: str
    rotary: str
    core: Operator
    absorbed: AttentionShape


@lru_cache(maxsize=256)
def latent_operators(block: Block) -> LatentOperators | None:
    """Up-projection, rotary and attention of a block with latent attention; None for others."""
    latent = latent_of(block)
    if latent is None:
        return None
    rotary = next(o for o in block.operators if o.kind is OperatorKind.ROTARY)
    core = next(o for o in block.operators if o.attention is not None)
    return LatentOperators(
        up=rotary.inputs[1], rotary=rotary.name, core=core, absorbed=latent.core()
    )


def cached_operator_of_block(layer: ServedLayer, block: Block, operator: Operator) -> Forward:
    """Serving version of an operator's forward pass, with cached latents in latent attention."""
    latent = latent_operators(block)
    if latent is None:
        return cached_operator(layer, operator)
    if operator.name == latent.up:
        return _StoreLatents(layer=layer, core=latent.core)
    if operator.name == latent.rotary:
        return ByPart(
            layer=layer, run_part=_StoreRotatedKeys(layer=layer, core=latent.core).run_part
        )
    if operator.attention is not None:
        return ByPart(
            layer=layer, run_part=_LatentAttention(layer=layer, operators=latent).run_part
        )
    return cached_operator(layer, operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoreLatents:
    """Store the latents of the batch's tokens in the cache.

    The attention core expands them or uses the absorbed form.
    """

    layer: ServedLayer
    core: Operator

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Store the latents; the output (unused zeros) stands for keys and values.

        See `Forward`.
        """
        yield from ()
        self.layer.up = place, weights
        for part in local_parts(self.layer, place):
            _store_in_cache(
                self.layer,
                self.core,
                self.layer.cache_key(place),
                part,
                part.sample_of(inputs)[0][0],
            )
        latent = inputs[0][0]
        unread = (
            latent.new_zeros(()).expand(*latent.shape[:2], high - low) for low, high in place.writes
        )
        return tuple(unread), SavedTensors(inputs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoreRotatedKeys:
    """Apply rotary positions to queries and keys, and store the rotated part of the keys."""

    layer: ServedLayer
    core: Operator

    def run_part(
        self, part: LocalPart, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[Values]:
        """Rotate one request's queries and keys, and cache the rotary part of the keys."""
        require_stable_rotary(part)
        (query, key, value), _ = yield from Rotary().forward(part.share, inputs, weights)
        width, rope = part.share.operator.reads[0].quantum, inputs[2][1].shape[-1]
        _store_in_cache(
            self.layer,
            self.core,
            self.layer.cache_key(part.share),
            part,
            key[..., width - rope : width],
        )
        return query, key, value


@dataclass(frozen=True, slots=True, kw_only=True)
class _LatentAttention:
    """Attention of one request's new tokens to all its cached latents."""

    layer: ServedLayer
    operators: LatentOperators

    def run_part(
        self, part: LocalPart, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[Values]:
        """One request's attention, absorbed for decode or all tokens as set, else expanded."""
        query = inputs[0][0]
        latents, turned = (
            self._cached(part, name) for name in (self.operators.up, self.operators.rotary)
        )
        reach = key_reach(shape_of(part.share))
        share = replace(
            part.share,
            key_positions=((self.layer.cache.first(reach, part.part.request), part.part.end),),
        )
        absorbed = self.layer.absorb is LatentReads.ALWAYS or (
            self.layer.absorb is LatentReads.DECODE and part.part.tokens == 1
        )
        if absorbed:
            return (yield from self._absorbed(share, query, latents, turned, weights))
        assert self.layer.up is not None
        up, up_weights = self.layer.up
        (plain, value), _ = yield from Linear().forward(up, ((latents,),), up_weights)
        key = join_rotary_keys(plain, turned, head=shape_of(share).head_dim)
        outputs, _ = yield from Attention().forward(share, ((query, key, value),), weights)
        return outputs

    def _cached(self, part: LocalPart, name: str) -> torch.Tensor:
        """Read the cached latents or rotated keys of a request, (1, positions, elements)."""
        cache_key = CacheKey(run=self.layer.run, layer=self.layer.number, operator=name, number=0)
        return self.layer.cache.get(
            key_reach(shape_of(part.share)), cache_key, request=part.part.request, end=part.part.end
        )

    def _absorbed(
        self,
        share: OperatorShare,
        query: torch.Tensor,
        latents: torch.Tensor,
        turned: torch.Tensor,
        weights: Weights,
    ) -> Task[Values]:
        """Latent attention without expanded keys: queries times W_key attend to cached latents."""
        assert self.layer.up is not None
        up, up_weights = self.layer.up
        shape, width = shape_of(share), latents.shape[-1]
        to_key, to_value = (
            up_weights[name].unflatten(-1, (-1, size))
            for name, size in zip(
                weight_and_bias_names(up)[0], _key_and_value_sizes(shape, turned), strict=True
            )
        )
        heads = query.unflatten(-1, (-1, shape.head_dim))
        plain, rope = heads.split([shape.head_dim - turned.shape[-1], turned.shape[-1]], dim=-1)
        one_head = self.operators.absorbed
        # Attention divides scores by the root of its head width, which differs from the model's.
        scale = (one_head.head_dim / shape.head_dim) ** 0.5
        absorbed = torch.cat([torch.einsum("nqhd,lhd->nqhl", plain, to_key), rope], dim=-1) * scale
        place = replace(
            share, operator=replace(share.operator, attention=one_head), kv_heads=(0, 1)
        )
        keys = torch.cat([latents, turned], dim=-1)
        (output_latents,), _ = yield from Attention().forward(
            place, ((absorbed.flatten(-2), keys, latents),), weights
        )
        return (
            torch.einsum(
                "nqhl,lhv->nqhv", output_latents.unflatten(-1, (-1, width)), to_value
            ).flatten(-2),
        )


def _key_and_value_sizes(shape: AttentionShape, turned: torch.Tensor) -> tuple[int, int]:
    """(elements of a head's key without rotary part, elements of a head's value)."""
    return shape.head_dim - turned.shape[-1], shape.value_dim


def _store_in_cache(
    layer: ServedLayer, core: Operator, spot: CacheKey, part: LocalPart, values: torch.Tensor
) -> None:
    """Write one request's new latents or rotated keys to the device's cache."""
    assert core.attention is not None
    layer.cache.put(
        key_reach(core.attention),
        spot,
        request=part.part.request,
        start=part.part.past,
        values=values[0],
    )
