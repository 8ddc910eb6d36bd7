"""Latent attention over a cache of latents: expanded to keys and values, or absorbed into queries
and outputs.

What lives is the normed latent and the turned rotary part of the keys, one for all heads
(DeepSeek-V2, arXiv 2405.04434, section 2.1.2). Absorbed, a query meets latents: q (W c) = (q W) c,
and what comes out is made a value once: with L elements a latent and R turned ones it is attention
of one key head of L + R elements, whose values are its first L.
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
from shardwright.execute.numerics.layers.linear import Linear, weight_and_bias_names
from shardwright.execute.numerics.positions.rotary_operator import Rotary, join_rotary_keys
from shardwright.execute.serve.cache_blocks import reach_of
from shardwright.execute.serve.cached_operators import (
    Absorb,
    ByPart,
    Here,
    ServedLayer,
    cached,
    parts_here,
    require_lasting_turns,
)
from shardwright.execute.serve.device_cache import Spot
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.absorbed_latent_attention import latent_of
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import AttentionShape, Operator, OperatorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentOperators:
    """Names in a block: what expands latents, what turns keys, and the core; the core's shape in
    absorbed form.
    """

    up: str
    rotary: str
    core: Operator
    absorbed: AttentionShape


@lru_cache(maxsize=256)
def latent_operators(block: Block) -> LatentOperators | None:
    """The latent-attention operators of a block; None for any other block."""
    latent = latent_of(block)
    if latent is None:
        return None
    rotary = next(o for o in block.operators if o.kind is OperatorKind.ROTARY)
    core = next(o for o in block.operators if o.attention is not None)
    return LatentOperators(
        up=rotary.inputs[1], rotary=rotary.name, core=core, absorbed=latent.core()
    )


def forward_in(layer: ServedLayer, block: Block, operator: Operator) -> Forward:
    """The forward pass of a block's operator over a batch whose parts have different positions."""
    found = latent_operators(block)
    if found is None:
        return cached(layer, operator)
    if operator.name == found.up:
        return _KeptLatents(layer=layer, core=found.core)
    if operator.name == found.rotary:
        return ByPart(layer=layer, one=_TurnedKeys(layer=layer, core=found.core).one)
    if operator.attention is not None:
        return ByPart(layer=layer, one=_LatentCore(layer=layer, operators=found).one)
    return cached(layer, operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptLatents:
    """Keeps the latents of the batch's tokens; the core makes keys and values of them, or does
    without.
    """

    layer: ServedLayer
    core: Operator

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Forward`. What it writes is not read."""
        yield from ()
        self.layer.up = place, weights
        for here in parts_here(self.layer, place):
            _put(self.layer, self.core, self.layer.spot(place), here, here.of(inputs)[0][0])
        latent = inputs[0][0]
        unread = (
            latent.new_zeros(()).expand(*latent.shape[:2], high - low) for low, high in place.writes
        )
        return tuple(unread), SavedTensors(inputs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnedKeys:
    """Turns queries, and keeps the turned part of the keys."""

    layer: ServedLayer
    core: Operator

    def one(self, here: Here, inputs: tuple[Values, ...], weights: Weights) -> Task[Values]:
        """Of a part."""
        require_lasting_turns(here)
        (query, key, value), _ = yield from Rotary().forward(here.share, inputs, weights)
        width, rope = here.share.operator.reads[0].quantum, inputs[2][1].shape[-1]
        _put(
            self.layer, self.core, self.layer.spot(here.share), here, key[..., width - rope : width]
        )
        return query, key, value


@dataclass(frozen=True, slots=True, kw_only=True)
class _LatentCore:
    """Attention of a part to all latents of its request."""

    layer: ServedLayer
    operators: LatentOperators

    def one(self, here: Here, inputs: tuple[Values, ...], weights: Weights) -> Task[Values]:
        """Of a part."""
        query = inputs[0][0]
        latents, turned = (
            self._cached(here, name) for name in (self.operators.up, self.operators.rotary)
        )
        reach = reach_of(shape_of(here.share))
        share = replace(
            here.share,
            key_positions=((self.layer.cache.first(reach, here.part.request), here.part.end),),
        )
        absorbed = self.layer.absorb is Absorb.ALWAYS or (
            self.layer.absorb is Absorb.DECODE and here.part.tokens == 1
        )
        if absorbed:
            return (yield from self._absorbed(share, query, latents, turned, weights))
        assert self.layer.up is not None
        up, own = self.layer.up
        (plain, value), _ = yield from Linear().forward(up, ((latents,),), own)
        key = join_rotary_keys(plain, turned, head=shape_of(share).head_dim)
        made, _ = yield from Attention().forward(share, ((query, key, value),), weights)
        return made

    def _cached(self, here: Here, name: str) -> torch.Tensor:
        spot = Spot(run=self.layer.run, layer=self.layer.number, operator=name, number=0)
        return self.layer.cache.get(
            reach_of(shape_of(here.share)), spot, request=here.part.request, end=here.part.end
        )

    def _absorbed(
        self,
        share: OperatorShare,
        query: torch.Tensor,
        latents: torch.Tensor,
        turned: torch.Tensor,
        weights: Weights,
    ) -> Task[Values]:
        assert self.layer.up is not None
        up, own = self.layer.up
        shape, width = shape_of(share), latents.shape[-1]
        to_key, to_value = (
            own[name].unflatten(-1, (-1, size))
            for name, size in zip(weight_and_bias_names(up)[0], _sizes(shape, turned), strict=True)
        )
        heads = query.unflatten(-1, (-1, shape.head_dim))
        plain, rope = heads.split([shape.head_dim - turned.shape[-1], turned.shape[-1]], dim=-1)
        one_head = self.operators.absorbed
        # The core divides by the root of its own width; that of the model's heads is another one.
        scale = (one_head.head_dim / shape.head_dim) ** 0.5
        absorbed = torch.cat([torch.einsum("nqhd,lhd->nqhl", plain, to_key), rope], dim=-1) * scale
        place = replace(
            share, operator=replace(share.operator, attention=one_head), kv_heads=(0, 1)
        )
        keys = torch.cat([latents, turned], dim=-1)
        (made,), _ = yield from Attention().forward(
            place, ((absorbed.flatten(-2), keys, latents),), weights
        )
        return (
            torch.einsum("nqhl,lhv->nqhv", made.unflatten(-1, (-1, width)), to_value).flatten(-2),
        )


def _sizes(shape: AttentionShape, turned: torch.Tensor) -> tuple[int, int]:
    """Elements of a head's own key and of its value."""
    return shape.head_dim - turned.shape[-1], shape.value_dim


def _put(layer: ServedLayer, core: Operator, spot: Spot, here: Here, values: torch.Tensor) -> None:
    assert core.attention is not None
    layer.cache.put(
        reach_of(core.attention),
        spot,
        request=here.part.request,
        start=here.part.past,
        values=values[0],
    )
