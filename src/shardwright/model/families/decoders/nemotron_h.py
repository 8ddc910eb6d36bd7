"""Builder of Nemotron-H and Nemotron 3, whose layers are one mixer each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_transformer_operators import (
    attention_operators,
    grouped_shape,
    hidden_extent,
    linear,
    mlp_operators,
    residual,
)
from shardwright.model.blocks.expert_blocks import (
    expert_operators,
    moe_operators,
    router_operators,
    shared_operators,
)
from shardwright.model.blocks.mamba import (
    MAX_KERNEL,
    MambaShape,
    mamba2_operators,
    mixer_block,
    scan_shape,
)
from shardwright.model.blocks.multi_token_prediction import MAX_PREDICTORS
from shardwright.model.families.decoders.deepseek import expert_shape
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.config_json_field_access import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HIDDEN,
    MAX_LAYERS,
    Fields,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import ExpertShape, Operator, OperatorClass

NEMOTRON_LETTERS: Final = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}


NEMOTRON_WORDS: Final = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "moe": "moe",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
}


def build_nemotron_h(fields: Fields) -> Model:
    """Build Nemotron-H or Nemotron 3 from its config: layers of a single mixer each.

    `NemotronHConfig`; a mixer is Mamba-2, attention without positions, an MLP or experts.
    """
    fields.mark_read("expand")  # the mixer's width is that of its heads
    block = partial(_nemotron_block, fields)
    layers = blocks_of(zip(_nemotron_kinds(fields)), block)
    depth = fields.integer("num_nextn_predict_layers", minimum=0, maximum=MAX_PREDICTORS, default=0)
    if not depth:
        return configured_model(fields, layers=layers)
    inside = _kinds_of(fields, words="mtp_layers_block_type", letters="mtp_hybrid_override_pattern")
    return configured_model(
        fields, layers=layers, predicts=depth, predictor=chain_blocks(map(block, inside))
    )


def _kinds_of(fields: Fields, *, words: str, letters: str) -> tuple[str, ...]:
    """Kinds in the list field `words`, else one for each letter of the text field `letters`.

    M is mamba, * attention, - MLP, E experts.
    """
    listed = fields.strings(words)
    for kind in listed:
        if kind not in NEMOTRON_WORDS:
            fields.fail(
                f"{words} has {kind[:40]!r}, which is not supported",
                hint=f"supported: {', '.join(NEMOTRON_WORDS)}",
            )
    if listed:
        return tuple(NEMOTRON_WORDS[kind] for kind in listed)
    pattern = fields.string(letters)
    if not pattern or set(pattern) - set(NEMOTRON_LETTERS):
        fields.fail(
            f"{letters} must be a string of the letters {' '.join(NEMOTRON_LETTERS)}",
            hint="one letter a layer",
        )
    return tuple(NEMOTRON_LETTERS[letter] for letter in pattern)


def _nemotron_kinds(fields: Fields) -> tuple[str, ...]:
    """Kind of each Nemotron-H layer: ``mamba``, ``attention``, ``mlp`` or ``moe``."""
    kinds = _kinds_of(fields, words="layers_block_type", letters="hybrid_override_pattern")
    layers = fields.optional_integer("num_hidden_layers", maximum=MAX_LAYERS)
    if len(kinds) > MAX_LAYERS or (layers is not None and layers != len(kinds)):
        fields.fail(
            f"num_hidden_layers = {layers} but the pattern has {len(kinds)} layers",
            hint="one entry for each layer",
        )
    return kinds


def _nemotron_block(fields: Fields, kind: str) -> Block:
    """The block of a Nemotron-H layer of kind mamba, attention, mlp or moe."""
    hidden = fields.hidden()
    if kind == "mamba":
        shape = MambaShape(
            scan=scan_shape(
                fields, heads="mamba_num_heads", head_dim="mamba_head_dim", state="ssm_state_size"
            ),
            kernel=fields.integer("conv_kernel", maximum=MAX_KERNEL),
            conv_bias=fields.flag("use_conv_bias", default=True),
            proj_bias=fields.flag("use_bias", "mamba_proj_bias", default=False),
        )
        return mixer_block(
            kind, hidden=hidden, mixer=mamba2_operators(hidden=hidden, shape=shape, source="norm")
        )
    if kind == "attention":
        if fields.present("sliding_window"):
            fields.unsupported("sliding_window in this family")
        bias = fields.flag("attention_bias", default=False)
        head_dim = fields.integer("head_dim", "attention_head_dim", maximum=MAX_HEAD_DIM)
        heads = grouped_shape(fields, head_dim=head_dim)
        mixer = attention_operators(
            source="norm", hidden=hidden, shape=heads, bias=bias, output_bias=bias, rotary=False
        )
        return mixer_block(kind, hidden=hidden, mixer=mixer)
    bias = fields.flag("mlp_bias", default=False)
    if kind == "mlp":
        feed = mlp_operators(source="norm", hidden=hidden, ffn=fields.ffn(), gated=False, bias=bias)
        return mixer_block(kind, hidden=hidden, mixer=feed)
    if bias:
        fields.unsupported("mlp_bias with experts")
    return mixer_block(kind, hidden=hidden, mixer=_nemotron_experts(fields, hidden=hidden))


def _nemotron_experts(fields: Fields, *, hidden: int) -> tuple[Operator, ...]:
    """Experts of a Nemotron-H layer, on a latent width if ``moe_latent_size`` is written."""
    ffn, shared = (
        fields.ffn("moe_intermediate_size"),
        fields.ffn("moe_shared_expert_intermediate_size"),
    )
    if fields.integer("n_shared_experts", minimum=0, maximum=MAX_EXPERTS, default=1) != 1:
        fields.unsupported("n_shared_experts other than 1 in this family")
    experts = expert_shape(fields)
    latent = fields.optional_integer("moe_latent_size", maximum=MAX_HIDDEN)
    if latent is None:
        return moe_operators(
            source="norm",
            hidden=hidden,
            ffn=ffn,
            experts=experts,
            gated=False,
            shared_ffn=shared,
            correction=True,
        )
    return _latent_experts(
        hidden=hidden, latent=latent, ffn=ffn, experts=experts, shared_ffn=shared
    )


def _latent_experts(
    *, hidden: int, latent: int, ffn: int, experts: ExpertShape, shared_ffn: int
) -> tuple[Operator, ...]:
    """Experts on `latent` elements a token, beside a shared expert of full width (Nemotron 3).

    ``latent_down`` lies before the dispatch, ``latent_up`` after the combine.

    Routing and the shared expert read the full width; tokens travel at the latent's width. Experts
    are not gated. Both projections have no width to cut, so they work on the stream as it lies.
    """
    width, narrow = hidden_extent(hidden), hidden_extent(latent)
    shared = shared_operators(source="norm", hidden=hidden, ffn=shared_ffn, gated=False)
    return (
        *router_operators(source="norm", hidden=hidden, experts=experts, correction=True),
        linear(
            "latent_down",
            source="norm",
            reads=(width,),
            writes=(narrow,),
            klass=OperatorClass.STREAM,
        ),
        *expert_operators(
            source="latent_down", hidden=latent, ffn=ffn, experts=experts, gated=False
        ),
        linear(
            "latent_up",
            source="unpermute",
            reads=(narrow,),
            writes=(width,),
            klass=OperatorClass.STREAM,
        ),
        *shared,
        residual("combine", source="latent_up", skip=shared[-1].name, hidden=hidden),
    )


def chain_blocks(blocks: Iterable[Block]) -> Block:
    """Chain blocks into one prediction module's layer; block i's names get the prefix ``i.``."""
    operators: list[Operator] = []
    for i, block in enumerate(blocks):
        names = {o.name: f"{i}.{o.name}" for o in block.operators} | {
            INPUT: operators[-1].name if operators else INPUT
        }
        operators += [
            replace(
                o.reading(names),
                name=names[o.name],
                parameters=tuple(replace(p, name=f"{i}.{p.name}") for p in o.parameters),
            )
            for o in block.operators
        ]
    return Block(name="mtp_layer", operators=tuple(operators))
