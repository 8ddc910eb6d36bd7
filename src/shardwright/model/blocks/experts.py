"""Mixture-of-experts feed-forward: router, dispatch, grouped experts, combine, and an optional shared expert.

The operators are ``router route permute experts.up experts.act experts.down unpermute`` and, with a shared expert,
``shared.up shared.act shared.down (shared.gate) combine``. Router probabilities weigh the activation (as Megatron-Core does), so
``unpermute`` keeps only the routing map and not the experts' outputs.
"""

from __future__ import annotations

from shardwright.model.blocks.dense import hidden_extent, linear, mlp_operators, residual
from shardwright.model.ir.operator import ExpertShape, Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor import Dim, Extent, Parameter, ParameterClass


def router_operators(
    *, source: str, hidden: int, experts: ExpertShape, bias: bool = False, correction: bool = False, prefix: str = ""
) -> tuple[Operator, Operator]:
    """Scores of all experts (``router``) and the choice of `topk` of them (``route``).

    Args:
        correction: a bias per expert used only in the choice (DeepSeek-V3's load balancing without auxiliary loss); it is stored, but
            updated by counting tokens, not by a gradient.
    """
    scores = Extent(dim=Dim.EXPERTS, size=experts.experts)
    width = hidden_extent(hidden)
    router = linear(f"{prefix}router", source=source, reads=(width,), writes=(scores,), klass=OperatorClass.ROUTER, bias=bias)
    weights = (Parameter(name=f"{prefix}router.correction", extents=(scores,), trainable=False),) if correction else ()
    route = Operator(
        name=f"{prefix}route",
        kind=OperatorKind.ROUTE,
        klass=OperatorClass.ROUTER,
        inputs=(router.name,),
        reads=(scores,),
        writes=(Extent(dim=Dim.EXPERTS, size=experts.topk),),
        parameters=weights,
        keeps=(router.name,),
        experts=experts,
    )
    return router, route


def grouped_linear(
    name: str, *, source: str, reads: tuple[Extent, ...], writes: tuple[Extent, ...], experts: ExpertShape, bias: bool = False
) -> Operator:
    """y_e = x_e W_e (+ b_e) for every expert e: weights are experts x product(reads) x sum(writes), tokens are routed tokens."""
    each = Extent(dim=Dim.EXPERTS, size=experts.experts)
    suffixes = [f".{i}" if i else "" for i in range(len(writes))]
    weights = [
        Parameter(name=f"{name}.weight{suffix}", extents=(each, *reads, w), klass=ParameterClass.EXPERTS)
        for suffix, w in zip(suffixes, writes, strict=True)
    ]
    if bias:
        weights += [
            Parameter(name=f"{name}.bias{suffix}", extents=(each, w), klass=ParameterClass.EXPERTS)
            for suffix, w in zip(suffixes, writes, strict=True)
        ]
    return Operator(
        name=name,
        kind=OperatorKind.GROUPED_LINEAR,
        klass=OperatorClass.EXPERTS,
        inputs=(source,),
        reads=reads,
        writes=writes,
        parameters=tuple(weights),
        keeps=(source,),
        experts=experts,
    )


def expert_operators(
    *, source: str, route: str, hidden: int, ffn: int, experts: ExpertShape, gated: bool = True, bias: bool = False, prefix: str = ""
) -> tuple[Operator, ...]:
    """``permute`` (sort tokens by expert), the experts' feed-forward and ``unpermute`` (back to token order, summed over topk)."""
    width = hidden_extent(hidden)
    inner = Extent(dim=Dim.FFN, size=ffn)
    written = (inner, inner) if gated else (inner,)
    permute, up, act, down, unpermute = (f"{prefix}{n}" for n in ("permute", "experts.up", "experts.act", "experts.down", "unpermute"))

    def moved(name: str, inputs: tuple[str, ...]) -> Operator:
        return Operator(
            name=name,
            kind=OperatorKind.PERMUTE,
            klass=OperatorClass.EXPERTS,
            inputs=inputs,
            reads=(width,),
            writes=(width,),
            keeps=(route,),
            experts=experts,
        )

    return (
        moved(permute, (source, route)),
        grouped_linear(up, source=permute, reads=(width,), writes=written, experts=experts, bias=bias),
        Operator(
            name=act,
            kind=OperatorKind.ACTIVATION,
            klass=OperatorClass.EXPERTS,
            inputs=(up,),
            reads=written,
            writes=(inner,),
            keeps=(up,),
            experts=experts,
            gated=gated,
        ),
        grouped_linear(down, source=act, reads=(inner,), writes=(width,), experts=experts, bias=bias),
        moved(unpermute, (down, route)),
    )


def shared_operators(
    *, source: str, hidden: int, ffn: int, gated: bool = True, gate: bool = False, prefix: str = ""
) -> tuple[Operator, ...]:
    """The expert that every token visits; `gate`: its output is scaled by a sigmoid of one learned score per token (Qwen2-MoE)."""
    operators = mlp_operators(source=source, hidden=hidden, ffn=ffn, gated=gated, klass=OperatorClass.SHARED, prefix=f"{prefix}shared.")
    if not gate:
        return operators
    width = hidden_extent(hidden)
    score = linear(
        f"{prefix}shared.gate", source=source, reads=(width,), writes=(Extent(dim=Dim.HIDDEN, size=1),), klass=OperatorClass.SHARED
    )
    down = operators[-1].name
    scaled = Operator(
        name=f"{prefix}shared.scale",
        kind=OperatorKind.ACTIVATION,
        klass=OperatorClass.SHARED,
        inputs=(down, score.name),
        reads=(width,),
        writes=(width,),
        keeps=(down, score.name),
    )
    return (*operators, score, scaled)


def moe_operators(
    *,
    source: str,
    hidden: int,
    ffn: int,
    experts: ExpertShape,
    gated: bool = True,
    shared_ffn: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    correction: bool = False,
    bias: bool = False,
    prefix: str = "",
) -> tuple[Operator, ...]:
    """A whole mixture-of-experts feed-forward; its last operator is ``unpermute``, or ``combine`` when there is a shared expert.

    Args:
        ffn: inner width of one expert. shared_ffn: inner width of all shared experts together; 0 = none.
        shared_gate, router_bias, correction, bias: see `shared_operators`, `router_operators`, `grouped_linear`.
    """
    router, route = router_operators(source=source, hidden=hidden, experts=experts, bias=router_bias, correction=correction, prefix=prefix)
    routed = expert_operators(
        source=source, route=route.name, hidden=hidden, ffn=ffn, experts=experts, gated=gated, bias=bias, prefix=prefix
    )
    if not shared_ffn:
        return (router, route, *routed)
    shared = shared_operators(source=source, hidden=hidden, ffn=shared_ffn, gated=gated, gate=shared_gate, prefix=prefix)
    combine = residual(f"{prefix}combine", source=routed[-1].name, skip=shared[-1].name, hidden=hidden)
    return (router, route, *routed, *shared, combine)
