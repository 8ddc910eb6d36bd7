"""A decoder's sizes as Megatron-LM's arguments, and model parts that no argument expresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright.frameworks.export.decoder_view_and_unsupported_layers import (
    Decoder,
    decoder_of,
    unsupported_attention_shortfalls,
    unsupported_factor_shortfalls,
    unsupported_layer_shortfalls,
)
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import Shortfall
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import LongerRotary
from shardwright.model.ir.operator import OperatorKind

Flags = list[tuple[str, str]]
"""(flag without dashes, value); an empty value is a switch."""
LLAMA3 = (1.0, 4.0, 8192.0)
"""Constants of ``--use-rope-scaling`` besides its factor: low and high frequency factors, and the
original number of positions."""
HEADS_MADE = name_set("qkv qk_norm rotary core proj")
LATENTS_MADE = name_set("q q_down q_norm q_up kv_down kv_norm kv_up rotary core proj")
AROUND = frozenset({"norm1", "norm2", "residual1", "residual2"})
DENSE_MADE = frozenset({"up", "act", "down"})
SPARSE_MADE = name_set(
    "router route permute experts.up experts.act experts.down unpermute shared.up"
    " shared.act shared.down shared.gate shared.scale combine"
)
"""Names of operators that the arguments can say."""


def model_shortfalls(model: Model) -> Iterator[Shortfall]:
    """Parts of a model that Megatron-LM's arguments cannot express."""
    decoder = decoder_of(model)
    unsupported = tuple(
        unsupported_layer_shortfalls(
            decoder, AROUND | HEADS_MADE | LATENTS_MADE | DENSE_MADE | SPARSE_MADE
        )
    )
    if unsupported:
        yield from unsupported
        return
    yield from unsupported_attention_shortfalls(decoder)
    shape = decoder.attention_shape
    if any(
        o.name == "qk_norm" and len(o.parameters) != 2 for o in decoder.operators_named("qk_norm")
    ) or any(
        p.size != shape.head_dim for o in decoder.operators_named("qk_norm") for p in o.parameters
    ):
        yield Shortfall(what="norms over all heads, or without gains", hint="norms of each head")
    yield from _hyperparameter_shortfalls(decoder)


def _hyperparameter_shortfalls(decoder: Decoder) -> Iterator[Shortfall]:
    """Shortfalls of rotary scaling, scale factors and activation functions."""
    settings = decoder.model.settings
    yield from unsupported_factor_shortfalls(decoder)
    longer = settings.longer
    if longer is not None and not (
        isinstance(longer, LongerRotary) and (longer.low, longer.high, longer.trained) == LLAMA3
    ):
        yield Shortfall(
            what=f"rotary positions made longer by {type(longer).__name__}",
            instead="positions as they were first trained",
        )
    act = decoder.first_operator("act") or decoder.first_operator("experts.act")
    if act is not None and act.gated and settings.activation not in ("", "silu"):
        yield Shortfall(what=f"feed-forwards gated by {settings.activation}", hint="gates of silu")
    if settings.activation not in ("", "silu", "gelu", "gelu_tanh", "relu2"):
        yield Shortfall(
            what=f"the activation {settings.activation}", hint="silu, gelu or squared relu"
        )


def model_flags(model: Model, *, length: int) -> Flags:
    """Megatron-LM's arguments (name, value) of a model at a sequence length in tokens.

    The model must have no fatal shortfall.

    Args:
        length: tokens of a sample.
    """
    decoder, settings = decoder_of(model), model.settings
    norm = next(
        o for block in decoder.layers for o in block.operators if o.kind is OperatorKind.NORM
    )
    gated, act = _gate_and_activation(decoder)
    biased = any(
        o.parameters[len(o.writes) :]
        for name in ("proj", "up", "down")
        for o in decoder.operators_named(name)
    )
    flags: Flags = [
        ("num-layers", str(len(decoder.layers))),
        ("hidden-size", str(model.hidden)),
        *_attention_arguments(decoder),
        *_feed_forward_arguments(decoder),
        ("seq-length", str(length)),
        ("max-position-embeddings", str(max(length, model.max_context or 0))),
        ("vocab-size", str(model.vocab)),
        ("normalization", "LayerNorm" if len(norm.parameters) > 1 else "RMSNorm"),
        ("norm-epsilon", f"{settings.eps:g}"),
        *_position_arguments(decoder),
    ]
    if gated and act == "silu":
        flags.append(("swiglu", ""))
    elif act == "relu2":
        flags.append(("squared-relu", ""))
    if not biased:
        flags.append(("disable-bias-linear", ""))
    if not decoder.ties_embedding:
        flags.append(("untie-embeddings-and-output-weights", ""))
    return flags


def _gate_and_activation(decoder: Decoder) -> tuple[bool, str]:
    """(True if the feed-forward is gated, name of its activation function)."""
    act = decoder.first_operator("act") or decoder.first_operator("experts.act")
    assert act is not None
    return act.gated, decoder.model.settings.activation or ("silu" if act.gated else "gelu_tanh")


def _attention_arguments(decoder: Decoder) -> Flags:
    """Megatron-LM's arguments of the attention layers, as (name, value)."""
    shape, flags = (
        decoder.attention_shape,
        [("num-attention-heads", str(decoder.attention_shape.heads))],
    )
    down = decoder.first_operator("kv_down")
    if down is not None:
        latent, turned = down.writes[0].size, down.writes[1].size
        q_down = decoder.first_operator("q_down")
        return [
            *flags,
            ("multi-latent-attention", ""),
            *([("q-lora-rank", str(q_down.writes[0].size))] if q_down is not None else []),
            ("kv-lora-rank", str(latent)),
            ("qk-head-dim", str(shape.head_dim - turned)),
            ("qk-pos-emb-head-dim", str(turned)),
            ("v-head-dim", str(shape.value_dim)),
            *([("qk-layernorm", "")] if decoder.first_operator("kv_norm") is not None else []),
        ]
    if shape.kv_heads < shape.heads:
        flags += [("group-query-attention", ""), ("num-query-groups", str(shape.kv_heads))]
    flags.append(("kv-channels", str(shape.head_dim)))
    qkv, proj = decoder.first_operator("qkv"), decoder.first_operator("proj")
    if qkv is not None and proj is not None and qkv.parameters[3:] and not proj.parameters[1:]:
        flags.append(("add-qkv-bias", ""))
    if decoder.first_operator("qk_norm") is not None:
        flags.append(("qk-layernorm", ""))
    if shape.window:
        flags.append(("window-size", f"{shape.window - 1},0"))
    return flags


def _feed_forward_arguments(decoder: Decoder) -> Flags:
    """Megatron-LM's arguments of the dense feed-forward, or of experts and router."""
    dense, up, route = (
        decoder.first_operator("up"),
        decoder.first_operator("experts.up"),
        decoder.first_operator("route"),
    )
    if up is None or route is None or route.experts is None:
        assert dense is not None
        return [("ffn-hidden-size", str(dense.writes[0].size))]
    settings, experts, shared = (
        decoder.model.settings,
        route.experts,
        decoder.first_operator("shared.up"),
    )
    sparse = [any(o.name == "route" for o in block.operators) for block in decoder.layers]
    corrected = bool(route.parameters)
    flags = [
        ("ffn-hidden-size", str((dense or up).writes[0].size)),
        ("num-experts", str(experts.experts)),
        ("moe-router-topk", str(experts.topk)),
        ("moe-ffn-hidden-size", str(up.writes[0].size)),
        (
            "moe-router-score-function",
            "sigmoid" if corrected or settings.sigmoid_scores else "softmax",
        ),
        ("moe-grouped-gemm", ""),
    ]
    if not all(sparse):
        flags.append(("moe-layer-freq", _expert_layer_pattern(sparse)))
    if not settings.shares_add_up and not corrected:
        flags.append(("moe-router-pre-softmax", ""))
    if settings.share_factor != 1.0:
        flags.append(("moe-router-topk-scaling-factor", f"{settings.share_factor:g}"))
    if corrected:
        flags.append(("moe-router-enable-expert-bias", ""))
    if experts.groups:
        flags += [
            ("moe-router-num-groups", str(experts.of_groups)),
            ("moe-router-group-topk", str(experts.groups)),
        ]
    if shared is not None:
        flags.append(("moe-shared-expert-intermediate-size", str(shared.writes[0].size)))
        if decoder.first_operator("shared.gate") is not None:
            flags.append(("moe-shared-expert-gate", ""))
    return flags


def _expert_layer_pattern(sparse: Sequence[bool]) -> str:
    """Layers with experts as Megatron's Python expression, such as ``[0]*3+[1]*58``."""
    runs: list[list[int]] = []
    for is_sparse in sparse:
        if runs and runs[-1][0] == is_sparse:
            runs[-1][1] += 1
        else:
            runs.append([int(is_sparse), 1])
    return "+".join(f"[{kind}]*{count}" for kind, count in runs)


def _position_arguments(decoder: Decoder) -> Flags:
    """Megatron-LM's arguments of the position embedding, as (name, value)."""
    settings, model = decoder.model.settings, decoder.model
    tables = [
        p
        for o in model.blocks[model.runs[0].block].operators
        for p in o.parameters
        if p.name.endswith("positions")
    ]
    if decoder.first_operator("rotary") is None:
        return [("position-embedding-type", "learned_absolute" if tables else "none")]
    flags = [("position-embedding-type", "rope"), ("rotary-base", f"{settings.rope_base:.0f}")]
    if settings.rope_share != 1.0:
        flags.append(("rotary-percent", f"{settings.rope_share:g}"))
    if (
        isinstance(settings.longer, LongerRotary)
        and (settings.longer.low, settings.longer.high, settings.longer.trained) == LLAMA3
    ):
        flags += [("use-rope-scaling", ""), ("rope-scaling-factor", f"{settings.longer.factor:g}")]
    return flags
