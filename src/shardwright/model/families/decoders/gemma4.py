"""Builder of Gemma 4's language model: windowed and full layers, dense or with experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.dense_transformer_operators import (
    QkNorm,
    attention_operators,
    core_operator,
    head_extents,
    hidden_extent,
    linear,
    mlp_operators,
    norm,
    qk_norm_operator,
    residual,
    rotary_operator,
)
from shardwright.model.blocks.expert_blocks import expert_operators, router_operators
from shardwright.model.blocks.read_sliding_windows_from_config import windows_of
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    Fields,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import AttentionShape, ExpertShape, Operator, OperatorClass
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter

USUAL_WINDOW: Final = 512
USUAL_PERIOD: Final = 6
USUAL_HEAD_DIM: Final = 512
"""Defaults of `Gemma4TextConfig`: window in keys, period of full layers, their head width."""
PER_LAYER: Final = "per_layer_config"


def build_gemma4(fields: Fields) -> Model:
    """Build Gemma 4's language model from its config (`Gemma4TextConfig`: tied).

    Per-layer embeddings, layers that share keys and wide feed-forwards (E2B, E4B) are refused.
    """
    if fields.integer("hidden_size_per_layer_input", minimum=0, maximum=MAX_HIDDEN):
        fields.unsupported("hidden_size_per_layer_input (per-layer embeddings) other than 0")
    if fields.integer("num_kv_shared_layers", minimum=0, maximum=MAX_LAYERS, default=0):
        fields.unsupported("num_kv_shared_layers (layers that share keys and values) other than 0")
    if fields.flag("use_double_wide_mlp", default=False):
        fields.unsupported("use_double_wide_mlp = true")
    fields.mark_read("vocab_size_per_layer_input")  # rows of a table that is not there
    if fields.present("use_bidirectional_attention"):
        # Tokens of one image see each other; a text alone has none.
        fields.choice("use_bidirectional_attention", allowed=("vision",))
    windows = _windows(fields)
    return configured_model(
        fields,
        layers=blocks_of(
            zip(windows), partial(_layer, fields, full_sizes=_full_layer_sizes(fields, windows))
        ),
        tied=True,
    )


def with_image_attention(language: Model, fields: Fields) -> Model:
    """Let an image's tokens see each other in windowed layers (``use_bidirectional_attention``)."""
    if not fields.present("use_bidirectional_attention"):
        return language

    def seeing(operator: Operator) -> Operator:
        """The operator; an attention core with a window lets tokens of one image see each other."""
        local = operator.attention is not None and operator.attention.window
        return replace(operator, sees_images=True) if local else operator

    blocks = (
        replace(block, operators=tuple(map(seeing, block.operators))) for block in language.blocks
    )
    return replace(language, blocks=tuple(blocks))


def _windows(fields: Fields) -> tuple[int, ...]:
    """Window of each layer in keys, 0 = all keys, as in the last; default 5 windowed of 6."""
    layers = fields.layers()
    if fields.present("layer_types"):
        windows = windows_of(fields, layers=layers, default_window=USUAL_WINDOW)
    else:
        window = fields.integer("sliding_window", maximum=MAX_CONTEXT, default=USUAL_WINDOW)
        windows = tuple(window if (i + 1) % USUAL_PERIOD else 0 for i in range(layers))
    return (*windows[:-1], 0)


def _full_layer_sizes(fields: Fields, windows: tuple[int, ...]) -> tuple[int, int]:
    """(head width, KV heads) of layers that see all keys: ``per_layer_config`` or global fields.

    Published files write them once; Transformers writes them layer by layer.
    """
    listed = fields.optional_section(PER_LAYER)
    heads = fields.kv_heads()
    if listed is not None:
        width, kv_heads = _listed_sizes(
            fields, listed, full=[i for i, window in enumerate(windows) if not window]
        )
    else:
        shared = fields.flag("attention_k_eq_v", default=False)
        width = fields.integer("global_head_dim", maximum=MAX_HEAD_DIM, default=USUAL_HEAD_DIM)
        kv_heads = (
            fields.integer("num_global_key_value_heads", maximum=MAX_HEADS, default=heads)
            if shared
            else heads
        )
    if fields.heads() % kv_heads:
        fields.fail(
            f"num_global_key_value_heads = {kv_heads} does not divide the {fields.heads()} query"
            " heads",
            hint="choose a divisor",
        )
    return width, kv_heads


def _listed_sizes(fields: Fields, listed: Fields, *, full: Sequence[int]) -> tuple[int, int]:
    """(head width, KV heads) of the layers `full`, whose ``per_layer_config`` entries are equal.

    The default is that of windowed layers.
    """
    entries = [listed.mapping.get(str(i), {}) for i in full]
    if (
        set(listed.mapping) - {str(i) for i in full}
        or any(entry != entries[0] for entry in entries)
        or not isinstance(entries[0], Mapping)
    ):
        fields.unsupported(
            f"{PER_LAYER} by which other layers differ than those that see all keys, or those among"
            " each other"
        )
    if set(entries[0]) - {"head_dim", "num_key_value_heads"}:
        fields.unsupported(f"{PER_LAYER} of more than head_dim and num_key_value_heads")
    listed.mark_read(*listed.mapping)
    entry = fields.inner(entries[0], f"{PER_LAYER}[{full[0]}]")
    width = entry.optional_integer("head_dim", maximum=MAX_HEAD_DIM) or fields.integer(
        "head_dim", maximum=MAX_HEAD_DIM
    )
    return width, entry.integer("num_key_value_heads", maximum=MAX_HEADS, default=fields.kv_heads())


def _layer(fields: Fields, window: int, *, full_sizes: tuple[int, int]) -> Block:
    """A Gemma 4 layer, dense or with parallel experts; sees `window` keys, 0 = all keys."""
    hidden, attention = fields.hidden(), _attention(fields, window=window, full_sizes=full_sizes)
    feed = mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=True)
    if fields.flag("enable_moe_block", default=False):
        feed = (*feed, *_parallel_experts(fields))
    name = "layer_window" if window else "layer"
    return layer_block(
        name, hidden=hidden, attention=attention, feed_forward=feed, post_norms=True, scaled=True
    )


def _attention(fields: Fields, *, window: int, full_sizes: tuple[int, int]) -> tuple[Operator, ...]:
    """Attention of a Gemma 4 layer; without a window, of `full_sizes`, and keys may be values too.

    One projection computes both, which are normed separately.
    """
    hidden, heads = fields.hidden(), fields.heads()
    bias = fields.flag("attention_bias", default=False)
    head_dim, kv_heads = (
        (fields.integer("head_dim", maximum=MAX_HEAD_DIM), fields.kv_heads())
        if window
        else full_sizes
    )
    shared = not window and fields.flag("attention_k_eq_v", default=False)
    shape = AttentionShape(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim, window=window
    )
    if not shared:
        return attention_operators(
            hidden=hidden, shape=shape, bias=bias, output_bias=bias, qk_norm=True, value_norm=True
        )
    query, key, _, out = head_extents(shape)
    width, klass = hidden_extent(hidden), OperatorClass.ATTN
    return (
        linear("qk", source="norm1", reads=(width,), writes=(query, key), klass=klass, bias=bias),
        qk_norm_operator(source="qk", shape=shape, width=QkNorm.HEAD, values=True),
        rotary_operator(inputs=("qk_norm",), shape=shape),
        core_operator("core", source="rotary", shape=shape),
        linear("proj", source="core", reads=(out,), writes=(width,), klass=klass, bias=bias),
    )


def _parallel_experts(fields: Fields) -> tuple[Operator, ...]:
    """Experts beside a dense feed-forward (ends in ``down``), and the sum of both normed outputs.

    The router's input norm has a scale of its own, its scores are divided by the root of the width,
    and every expert has a factor.
    """
    hidden = fields.hidden()
    count = fields.integer("num_experts", maximum=MAX_EXPERTS)
    experts = ExpertShape(
        experts=count, topk=fields.integer("top_k_experts", "num_experts_per_tok", maximum=count)
    )
    ffn = fields.ffn("moe_intermediate_size", "expert_intermediate_size")
    router, route = router_operators(source="router_norm", hidden=hidden, experts=experts)
    scale = Parameter(name="route.expert_scale", extents=(Extent(dim=Dim.EXPERTS, size=count),))
    routed = expert_operators(source="expert_norm", hidden=hidden, ffn=ffn, experts=experts)
    return (
        norm("mlp_norm", source="down", hidden=hidden),
        norm("router_norm", source="residual1", hidden=hidden),
        replace(router, factors=(hidden**-0.5,)),
        replace(route, parameters=(*route.parameters, scale)),
        norm("expert_norm", source="residual1", hidden=hidden),
        *routed,
        norm("moe_norm", source=routed[-1].name, hidden=hidden),
        residual("combine", source="moe_norm", skip="mlp_norm", hidden=hidden),
    )
