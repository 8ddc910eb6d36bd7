"""Operators of a mixture-of-experts feed-forward: router, dispatch, grouped experts, shared expert.

The operators are ``router route permute experts.up experts.act experts.down unpermute`` and, with a
shared expert, ``shared.up shared.act shared.down (shared.gate) combine``. Router probabilities
weigh the activation (as Megatron-Core does), so ``unpermute`` keeps only the routing map and not
the experts' outputs.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.blocks.dense_transformer_operators import (
    hidden_extent,
    linear,
    mlp_operators,
    residual,
    unary_operator,
)
from shardwright.model.ir.operator import ExpertShape, Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter


def router_operators(
    *, source: str, hidden: int, experts: ExpertShape, bias: bool = False, correction: bool = False
) -> tuple[Operator, Operator]:
    """The router: scores of all experts (``router``) and selection of `topk` of them (``route``).

    Args:
        correction: a bias per expert used only in the choice (DeepSeek-V3's load balancing without
            auxiliary loss); it is stored, but updated by counting tokens, not by a gradient.
    """
    scores = Extent(dim=Dim.EXPERTS, size=experts.experts)
    width = hidden_extent(hidden)
    router = linear(
        "router",
        source=source,
        reads=(width,),
        writes=(scores,),
        klass=OperatorClass.ROUTER,
        bias=bias,
    )
    weights = (
        (Parameter(name="router.correction", extents=(scores,), trainable=False),)
        if correction
        else ()
    )
    chosen, klass = (Extent(dim=Dim.EXPERTS, size=experts.topk),), OperatorClass.ROUTER
    route = unary_operator(
        "route",
        OperatorKind.ROUTE,
        klass,
        source="router",
        reads=(scores,),
        writes=chosen,
        parameters=weights,
        experts=experts,
    )
    return router, route


def expert_operators(
    *,
    source: str,
    hidden: int,
    ffn: int,
    experts: ExpertShape,
    gated: bool = True,
    bias: bool = False,
    weighed: bool = False,
) -> tuple[Operator, ...]:
    """Routed experts: ``permute`` by expert, grouped feed-forward, ``unpermute`` summed over topk.

    `weighed`: a token is multiplied by its router weight before an expert, not after.
    """
    width, klass = (hidden_extent(hidden),), OperatorClass.EXPERTS

    def permutation(name: str, inputs: tuple[str, ...]) -> Operator:
        """Operator that moves tokens to or from the experts that the router selected for them."""
        kind = OperatorKind.PERMUTE
        return Operator(
            name=name,
            kind=kind,
            klass=klass,
            inputs=inputs,
            reads=width,
            writes=width,
            keeps=("route",),
            experts=experts,
            weighed=weighed,
        )

    return (
        permutation("permute", (source, "route")),
        *mlp_operators(
            source="permute",
            hidden=hidden,
            ffn=ffn,
            gated=gated,
            bias=bias,
            klass=klass,
            prefix="experts.",
            experts=experts,
        ),
        permutation("unpermute", ("experts.down", "route")),
    )


def shared_operators(
    *, source: str, hidden: int, ffn: int, gated: bool = True, gate: bool = False
) -> tuple[Operator, ...]:
    """The shared expert, through which every token passes; `gate` scales its output by a sigmoid.

    `gate`: its output is scaled by a sigmoid of one learned score per token (Qwen2-MoE).
    """
    operators = mlp_operators(
        source=source,
        hidden=hidden,
        ffn=ffn,
        gated=gated,
        klass=OperatorClass.SHARED,
        prefix="shared.",
    )
    if not gate:
        return operators
    width = hidden_extent(hidden)
    score = linear(
        "shared.gate",
        source=source,
        reads=(width,),
        writes=(hidden_extent(1),),
        klass=OperatorClass.SHARED,
    )
    both = ("shared.down", "shared.gate")
    scale = unary_operator(
        "shared.scale",
        OperatorKind.ACTIVATION,
        OperatorClass.SHARED,
        source=both[0],
        reads=(width,),
        writes=(width,),
    )
    return (*operators, score, replace(scale, inputs=both, keeps=both))


def moe_operators(
    *,
    hidden: int,
    ffn: int,
    experts: ExpertShape,
    gated: bool = True,
    shared_ffn: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    correction: bool = False,
    bias: bool = False,
    weighed: bool = False,
    source: str = "norm2",
) -> tuple[Operator, ...]:
    """A complete mixture-of-experts feed-forward: router, experts and shared expert.

    The last operator is ``unpermute``, or ``combine`` with a shared expert.

    Args:
        ffn: inner width of one expert.
        shared_ffn: inner width of all shared experts together; 0 = none.
        shared_gate, router_bias, correction, bias, weighed: see `shared_operators`,
            `router_operators`, `expert_operators`.
    """
    chosen = router_operators(
        source=source, hidden=hidden, experts=experts, bias=router_bias, correction=correction
    )
    routed = expert_operators(
        source=source,
        hidden=hidden,
        ffn=ffn,
        experts=experts,
        gated=gated,
        bias=bias,
        weighed=weighed,
    )
    if not shared_ffn:
        return (*chosen, *routed)
    shared = shared_operators(
        source=source, hidden=hidden, ffn=shared_ffn, gated=gated, gate=shared_gate
    )
    return (
        *chosen,
        *routed,
        *shared,
        residual("combine", source="unpermute", skip=shared[-1].name, hidden=hidden),
    )
