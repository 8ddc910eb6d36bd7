"""Builders of MiniMax-M2, MiMo, MiMo-V2, Step 3.7 and Llama-Nemotron language models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.dense_transformer_operators import (
    QkNorm,
    attention_operators,
    grouped_shape,
    mlp_operators,
    norm,
    residual,
)
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.blocks.gated_delta_net_and_gated_attention import gated_attention_operators
from shardwright.model.blocks.multi_token_prediction import num_predictors
from shardwright.model.blocks.read_sliding_windows_from_config import refuse_window, windows_of
from shardwright.model.families.decoders.deepseek import expert_shape
from shardwright.model.families.decoders.llama import gated_layers
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.config_json_field_access import (
    MAX_CONTEXT,
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    Fields,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import AttentionShape, Operator

NAS_MULTIPLE = 256


def build_minimax_m2(fields: Fields) -> Model:
    """Build MiniMax-M2 to M2.7 from its config: experts in all layers, no shared expert.

    The prediction modules that ``num_mtp_modules`` names are in no released checkpoint and are left
    out; write ``num_nextn_predict_layers`` to train with them.
    """
    hidden = fields.hidden()
    if fields.integer("shared_intermediate_size", minimum=0, maximum=MAX_FFN, default=0):
        fields.unsupported("shared_intermediate_size other than 0 in this family")
    qk_norm: QkNorm | bool = False
    if fields.flag("use_qk_norm"):
        qk_norm = (
            QkNorm.HEAD
            if fields.choice("qk_norm_type", allowed=("per_layer", "per_head")) == "per_head"
            else QkNorm.WIDTH
        )
    head_dim = fields.integer("head_dim", maximum=MAX_HEAD_DIM)
    attention = attention_operators(
        hidden=hidden, shape=grouped_shape(fields, head_dim=head_dim), qk_norm=qk_norm
    )
    correction = fields.flag("use_routing_bias", default=False)
    moe = moe_operators(
        hidden=hidden, ffn=fields.ffn(), experts=expert_shape(fields), correction=correction
    )
    layer = layer_block("moe", hidden=hidden, attention=attention, feed_forward=moe)
    return configured_model(
        fields,
        layers=[layer] * fields.layers(),
        predicts=num_predictors(fields) if fields.present("num_nextn_predict_layers") else 0,
    )


def build_mimo(fields: Fields) -> Model:
    """Build MiMo-7B from its config: Qwen2's layers without windows, and prediction modules."""
    refuse_window(fields)
    layers = gated_layers(
        fields,
        windows=(0,) * fields.layers(),
        attention_bias=fields.flag("attention_bias", default=True),
    )
    return configured_model(fields, layers=layers, predicts=num_predictors(fields))


def build_mimo_v2(fields: Fields) -> Model:
    """Build MiMo-V2-Flash from its config: windowed layers with sinks and their own kv heads.

    Values are narrower than keys.
    """
    layers = fields.layers()
    fields.mark_read("attention_chunk_size")  # as long as the window, which kernels walk in chunks
    windowed = fields.switches("hybrid_layer_pattern", layers=layers)
    sparse = fields.switches("moe_layer_freq", layers=layers)
    if fields.flag("attention_bias", default=False):
        fields.unsupported("attention_bias = true in this family")
    if fields.integer("n_shared_experts", minimum=0, default=0):
        fields.unsupported("n_shared_experts in this family")
    return configured_model(
        fields, layers=blocks_of(zip(windowed, sparse, strict=True), partial(_mimo_layer, fields))
    )


def _mimo_layer(fields: Fields, window: bool, sparse: bool) -> Block:
    """A MiMo-V2 layer: windowed or full, dense or with experts."""
    hidden = fields.hidden()
    stem = "swa_" if window else ""
    heads = fields.integer(f"{stem}num_attention_heads", maximum=MAX_HEADS)
    kv_heads = fields.integer(f"{stem}num_key_value_heads", maximum=MAX_HEADS)
    if heads % kv_heads:
        fields.fail(
            f"{stem}num_key_value_heads = {kv_heads} does not divide the {heads} query heads",
            hint="choose a divisor",
        )
    shape = AttentionShape(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.integer(f"{stem}head_dim", maximum=MAX_HEAD_DIM),
        value_dim=fields.integer(f"{stem}v_head_dim", maximum=MAX_HEAD_DIM),
        window=(
            fields.integer("sliding_window", "sliding_window_size", maximum=MAX_CONTEXT)
            if window
            else 0
        ),
        sinks=fields.flag(
            "add_swa_attention_sink_bias" if window else "add_full_attention_sink_bias"
        ),
    )
    attention = attention_operators(hidden=hidden, shape=shape)
    if sparse:
        ffn = fields.ffn("moe_intermediate_size")
        feed = moe_operators(hidden=hidden, ffn=ffn, experts=expert_shape(fields), correction=True)
    else:
        feed = mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=True)
    name = ("window" if window else "full") + ("_moe" if sparse else "")
    return layer_block(name, hidden=hidden, attention=attention, feed_forward=feed)


def build_step3p7(fields: Fields) -> Model:
    """Build Step 3.7's language model from its config: windowed layers, gated attention.

    `Step3p7TextConfig`; the gate is one score a head.

    ``num_sliding_attention_heads`` must be written (null = as many as in full layers): released
    models of this family differ in it.
    """
    layers = fields.layers()
    windows = windows_of(fields, layers=layers)
    dense = fields.integer("first_k_dense_replace", minimum=0, maximum=MAX_LAYERS, default=0)
    kinds = fields.layer_types(layers=layers, allowed=("dense", "sparse"), name="mlp_layer_types")
    sparse = (
        tuple(kind == "sparse" for kind in kinds)
        if kinds
        else tuple(i >= dense for i in range(layers))
    )
    if not kinds and not fields.present("first_k_dense_replace"):
        fields.missing("mlp_layer_types", "first_k_dense_replace")
    if not fields.written("num_sliding_attention_heads"):
        fields.missing("num_sliding_attention_heads")
    if fields.flag("attention_bias", default=False) or fields.flag("mlp_bias", default=False):
        fields.unsupported("attention_bias or mlp_bias in this family")
    return configured_model(
        fields, layers=blocks_of(zip(windows, sparse, strict=True), partial(_step_layer, fields))
    )


def _step_layer(fields: Fields, window: int, sparse: bool) -> Block:
    """A Step 3.7 layer with gated attention over `window` keys (0 = all), dense or with experts."""
    hidden = fields.hidden()
    full = grouped_shape(fields, head_dim=fields.integer("head_dim", maximum=MAX_HEAD_DIM))
    heads = full.heads
    if window:
        heads = fields.integer("num_sliding_attention_heads", maximum=MAX_HEADS, default=heads)
    if heads % full.kv_heads:
        fields.fail(
            f"num_key_value_heads = {full.kv_heads} does not divide the {heads} heads of windowed"
            " layers",
            hint="choose a divisor",
        )
    shape = replace(full, heads=heads, window=window)
    attention = gated_attention_operators(hidden=hidden, shape=shape, gate_width=1)
    if sparse:
        ffn, shared = fields.ffn("moe_intermediate_size"), fields.ffn("share_expert_dim")
        feed = moe_operators(
            hidden=hidden, ffn=ffn, experts=expert_shape(fields), shared_ffn=shared, correction=True
        )
    else:
        feed = mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=True)
    name = ("window" if window else "full") + ("_moe" if sparse else "")
    return layer_block(name, hidden=hidden, attention=attention, feed_forward=feed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedLayer:
    """Sizes of a pruned layer: heads of a kv group and feed-forward width; 0 = removed."""

    group: int
    ffn: int

    @property
    def name(self) -> str:
        """Block name by query heads a KV head and feed-forward width: ``attn8_ffn14336``."""
        attention = f"attn{self.group}" if self.group else "no_attn"
        return f"{attention}_ffn{self.ffn}" if self.ffn else f"{attention}_no_ffn"


def build_nemotron_nas(fields: Fields) -> Model:
    """Build Llama-Nemotron from its config (`DeciLMConfig`): Llama layers pruned one by one.

    ``block_configs`` describes each layer.

    A feed-forward is int(2 ffn_mult hidden / 3) wide, rounded up to a multiple of 256.
    """
    layers = fields.layers()
    _, entries = fields.find("block_configs")
    if not isinstance(entries, list) or len(entries) != layers:
        fields.fail(f"block_configs must list {layers} layers", hint="one object for each layer")
    fields.mark_read("intermediate_size", "num_key_value_heads")  # of the model that was pruned
    forms = [_pruned_layer(fields, entry, index=i) for i, entry in enumerate(entries)]
    if fields.flag("attention_bias", default=False) or fields.flag("mlp_bias", default=False):
        fields.unsupported("attention_bias or mlp_bias in this family")
    blocks = {
        form: _pruned_block(fields, form) for form in dict.fromkeys(forms) if form.group or form.ffn
    }
    kept = [blocks[form] for form in forms if form in blocks]
    if not kept:
        fields.fail(
            "block_configs leaves no layer", hint="every layer has no_op for attention and ffn"
        )
    return configured_model(fields, layers=kept)


def _pruned_layer(fields: Fields, entry: Mapping[str, Any], *, index: int) -> PrunedLayer:
    """Sizes of layer `index` from its ``block_configs`` entry; 0 = no attention or feed-forward."""
    path = f"block_configs[{index}]"
    if not isinstance(entry, Mapping):
        fields.fail(f"{path} must be an object", hint="it has the sections attention and ffn")
    layer = fields.inner(entry, path)
    attention, feed = layer.section("attention"), layer.section("ffn")
    for section in (attention, feed):
        for feature in (
            "replace_with_linear",
            "sparsify",
            "window_length",
            "num_sink_tokens",
            "unshifted_sink",
        ):
            if section.find(feature)[1]:
                section.unsupported(f"{section.path}{feature}")
    group = width = 0
    if not attention.flag("no_op", default=False):
        group = attention.integer("n_heads_in_group", maximum=MAX_HEADS)
        if fields.heads() % group:
            fields.fail(
                f"{path}.attention.n_heads_in_group = {group} does not divide the {fields.heads()}"
                " heads",
                hint="choose a divisor",
            )
    if not feed.flag("no_op", default=False):
        times = feed.number("ffn_mult", minimum=1e-3, maximum=1e3)
        width = -(-int(2 * times * fields.hidden() / 3) // NAS_MULTIPLE) * NAS_MULTIPLE
    return PrunedLayer(group=group, ffn=width)


def _pruned_block(fields: Fields, form: PrunedLayer) -> Block:
    """Block of a Llama layer from which attention, feed-forward or both may be left out."""
    hidden, head_dim = fields.hidden(), fields.head_dim()
    operators: list[Operator] = []
    last = INPUT
    if form.group:
        shape = AttentionShape(
            heads=fields.heads(),
            kv_heads=fields.heads() // form.group,
            head_dim=head_dim,
            value_dim=head_dim,
        )
        mixer = attention_operators(hidden=hidden, shape=shape)
        operators += [
            norm("norm1", source=last, hidden=hidden),
            *mixer,
            residual("residual1", source="proj", skip=last, hidden=hidden),
        ]
        last = "residual1"
    if form.ffn:
        feed = mlp_operators(hidden=hidden, ffn=form.ffn, gated=True)
        operators += [
            norm("norm2", source=last, hidden=hidden),
            *feed,
            residual("residual2", source="down", skip=last, hidden=hidden),
        ]
    return Block(name=form.name, operators=tuple(operators))
