"""Builders of hybrids of state-space layers and attention: Jamba, Falcon-H1, Granite 4."""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.dense_transformer_operators import (
    attention_operators,
    grouped_shape,
    mlp_operators,
    residual,
)
from shardwright.model.blocks.expert_blocks import (
    moe_operators,
)
from shardwright.model.blocks.mamba import (
    MAX_CHUNK,
    MAX_KERNEL,
    MAX_STATE,
    MambaShape,
    SelectiveShape,
    mamba1_operators,
    mamba2_operators,
)
from shardwright.model.families.decoders.deepseek import expert_shape
from shardwright.model.families.decoders.nemotron_h import NEMOTRON_WORDS
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import (
    MAX_EXPERTS,
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HIDDEN,
    MAX_LAYERS,
    Fields,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import ExpertShape, ScanShape


def build_jamba(fields: Fields) -> Model:
    """Build Jamba from its config: periodic attention among Mamba-1 layers, periodic experts.

    Experts follow a period of their own.
    """
    hidden, layers = fields.hidden(), fields.layers()
    attends = _periodic(fields, "attn_layer", layers=layers)
    sparse = _periodic(fields, "expert_layer", layers=layers)
    count = fields.integer("num_experts", maximum=MAX_EXPERTS)
    if count == 1:
        sparse = (False,) * layers
    experts = ExpertShape(experts=count, topk=fields.integer("num_experts_per_tok", maximum=count))
    _, rank = fields.find("mamba_dt_rank")
    mamba = SelectiveShape(
        inner=fields.integer("mamba_expand", maximum=64) * hidden,
        state=fields.integer("mamba_d_state", maximum=MAX_STATE),
        rank=-(-hidden // 16)
        if rank == "auto"
        else fields.integer("mamba_dt_rank", maximum=MAX_HIDDEN),
        kernel=fields.integer("mamba_d_conv", maximum=MAX_KERNEL),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        proj_bias=fields.flag("mamba_proj_bias", default=False),
        inner_norms=True,
    )
    mixers = {
        True: attention_operators(
            hidden=hidden, shape=grouped_shape(fields, head_dim=fields.head_dim()), rotary=False
        ),
        False: mamba1_operators(hidden=hidden, shape=mamba),
    }
    feeds = {
        True: moe_operators(hidden=hidden, ffn=fields.ffn(), experts=experts),
        False: mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=True),
    }

    def layer(attends: bool, sparse: bool) -> Block:
        """The block of an attention or Mamba layer, dense or with experts."""
        label = ("attention" if attends else "mamba") + ("_moe" if sparse else "")
        return layer_block(
            label, hidden=hidden, attention=mixers[attends], feed_forward=feeds[sparse]
        )

    return configured_model(fields, layers=blocks_of(zip(attends, sparse, strict=True), layer))


def _periodic(fields: Fields, stem: str, *, layers: int) -> tuple[bool, ...]:
    """True for each layer i with i mod ``<stem>_period`` = ``<stem>_offset``."""
    period = fields.integer(f"{stem}_period", maximum=MAX_LAYERS)
    offset = fields.integer(f"{stem}_offset", minimum=0, maximum=MAX_LAYERS)
    if offset >= period:
        fields.fail(
            f"{stem}_offset = {offset} is not below {stem}_period = {period}",
            hint="no layer would match",
        )
    return tuple(i % period == offset for i in range(layers))


def build_falcon_h1(fields: Fields) -> Model:
    """Build Falcon-H1 from its config: attention and Mamba-2 in parallel in every layer.

    `FalconH1Config`: no biases but the convolution's, no gate norm. Its multipliers are factors of
    projections' outputs: a factor before a projection equals a factor after it.
    """
    hidden = fields.hidden()
    ssm, mlp = (
        multipliers(fields, "ssm_multipliers", count=5),
        multipliers(fields, "mlp_multipliers", count=2),
    )
    into, key, out, ssm_into, ssm_out = (
        fields.number(name, minimum=-1e9, maximum=1e9, default=1.0)
        for name in (
            "attention_in_multiplier",
            "key_multiplier",
            "attention_out_multiplier",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
        )
    )
    factors = {
        "qkv": (into, into * key, into),
        "proj": (out,),
        "ssm.in_proj": tuple(ssm_into * one for one in ssm),
        "ssm.out_proj": (ssm_out,),
        "up": (mlp[0], 1.0),
        "down": (mlp[1],),
    }
    bias = fields.flag("attention_bias", default=False)
    shape = grouped_shape(fields, head_dim=fields.head_dim())
    attention = attention_operators(hidden=hidden, shape=shape, bias=bias, output_bias=bias)
    mamba = mamba2_operators(
        hidden=hidden, shape=_expanded_mamba(fields, inner="mamba_d_ssm"), prefix="ssm."
    )
    both = residual("mix", source="proj", skip="ssm.out_proj", hidden=hidden)
    feed = mlp_operators(
        hidden=hidden, ffn=fields.ffn(), gated=True, bias=fields.flag("mlp_bias", default=False)
    )
    block = layer_block(
        "layer", hidden=hidden, attention=(*attention, *mamba, both), feed_forward=feed
    )
    block = replace(
        block, operators=tuple(replace(o, factors=factors.get(o.name, ())) for o in block.operators)
    )
    return configured_model(fields, layers=[block] * fields.layers())


def multipliers(fields: Fields, name: str, *, count: int) -> tuple[float, ...]:
    """Read a list of `count` factors; all ones if not written, ModelError for another length."""
    written = fields.mapping.get(name)
    if written is None:
        return (1.0,) * count
    if not isinstance(written, list | tuple) or len(written) != count:
        fields.fail(f"{name} has to be {count} numbers", hint="one factor for each part")
    parts = [Fields({name: part}, fields.source) for part in written]
    return tuple(part.number(name, minimum=-1e9, maximum=1e9, default=1.0) for part in parts)


def _expanded_mamba(fields: Fields, *, inner: str = "") -> MambaShape:
    """Read the ``mamba_*`` fields of a Mamba-2 mixer; `inner` names its width's field, if any.

    ``mamba_d_head`` may be ``auto``: the inner width over the heads. `inner`: field of the inner
    width, if the family has one; else ``mamba_expand`` x hidden.
    """
    width = fields.optional_integer(inner, maximum=MAX_FFN) if inner else None
    if width is None:
        width = fields.integer("mamba_expand", maximum=64) * fields.hidden()
    heads = fields.integer("mamba_n_heads", maximum=MAX_FFN)
    head_dim = (
        width // heads
        if fields.find("mamba_d_head")[1] == "auto"
        else fields.integer("mamba_d_head", maximum=MAX_HEAD_DIM)
    )
    if heads * head_dim != width:
        fields.fail(
            f"mamba_n_heads x mamba_d_head = {heads} x {head_dim} is not the inner width {width}",
            hint="compare the three fields",
        )
    groups = fields.integer("mamba_n_groups", maximum=heads)
    if heads % groups:
        fields.fail(
            f"mamba_n_groups = {groups} does not divide the {heads} heads",
            hint="choose a divisor of mamba_n_heads",
        )
    bias = fields.flag("mamba_proj_bias", default=False)
    if fields.flag("projectors_bias", default=bias) != bias:
        fields.unsupported("projectors_bias other than mamba_proj_bias")
    return MambaShape(
        scan=ScanShape(
            heads=heads,
            head_dim=head_dim,
            state=fields.integer("mamba_d_state", maximum=MAX_STATE),
            groups=groups,
            chunk=fields.integer("mamba_chunk_size", maximum=MAX_CHUNK),
        ),
        kernel=fields.integer("mamba_d_conv", maximum=MAX_KERNEL),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        proj_bias=bias,
        gate_norm=fields.flag("mamba_rms_norm", default=False) if inner else True,
        grouped=bool(inner),
    )


def build_granite_hybrid(fields: Fields) -> Model:
    """Build Granite 4 from its config: Mamba-2 or attention, then experts and a shared expert.

    `GraniteMoeHybridConfig`; ``layer_types`` selects Mamba-2 or attention.

    Without experts (``num_local_experts`` 0) the shared feed-forward is the layer's only one.
    ``position_embedding_type`` other than rope means none.
    """
    hidden, layers = fields.hidden(), fields.layers()
    kinds = fields.layer_types(
        layers=layers, allowed=("mamba", "attention", "full_attention", "linear_attention")
    )
    if not kinds:
        fields.missing("layer_types")
    bias = fields.flag("attention_bias", default=False)
    shared = fields.ffn("shared_intermediate_size")
    if fields.integer("num_local_experts", minimum=0, maximum=MAX_EXPERTS):
        feed = moe_operators(
            hidden=hidden, ffn=fields.ffn(), experts=expert_shape(fields), shared_ffn=shared
        )
    else:
        feed = mlp_operators(hidden=hidden, ffn=shared, gated=True)
    shape = grouped_shape(fields, head_dim=fields.even_head_dim(), kv_heads=fields.heads())
    rotary = fields.string("position_embedding_type", default="nope") == "rope"
    mixers = {
        "attention": attention_operators(
            hidden=hidden, shape=shape, bias=bias, output_bias=bias, rotary=rotary
        ),
        "mamba": mamba2_operators(hidden=hidden, shape=_expanded_mamba(fields)),
    }
    blocks = {
        n: layer_block(n, hidden=hidden, attention=m, feed_forward=feed) for n, m in mixers.items()
    }
    return configured_model(fields, layers=[blocks[NEMOTRON_WORDS[kind]] for kind in kinds])
