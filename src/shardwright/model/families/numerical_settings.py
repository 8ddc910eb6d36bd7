"""Read the numerical settings of a model from config.json.

A field that is not written has the value of the family's configuration class in Transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, sqrt
from typing import Any, Final

from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.families.fields.activation_names import SPELLED
from shardwright.model.families.fields.config_class_defaults import (
    CLASSES,
    UNKNOWN,
    ClassSettings,
)
from shardwright.model.families.fields.dropout import dropout_probabilities
from shardwright.model.families.fields.embedding_padding_row import padding_row
from shardwright.model.families.fields.rotary_fields import (
    ORIGINAL,
    latent_score_factor,
    local_rope_of,
    number_or_none,
    rotary_extension,
    rotary_settings,
    rotary_share,
    text_image_rotary,
)
from shardwright.model.families.fields.router_loss_and_noise_fields import (
    load_balancing,
    other_losses,
    router_noise,
)
from shardwright.model.families.images.tower_settings_by_architecture import (
    image_input,
    tower_settings,
)
from shardwright.model.ir.config_json_field_access import MAX_HEAD_DIM, Fields, value_text
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import (
    QUICK,
    USUAL,
    LongRotary,
    Settings,
    YarnRotary,
)
from shardwright.model.ir.operator import OperatorClass, OperatorKind

ACTIVATION = (
    *(
        "hidden_activation",
        "hidden_act",
        "activation_function",
        "activation",
        "mlp_hidden_act",
        "dense_act_fn",
    ),
    "feed_forward_proj",
)
LATENT_NORMS: Final = ("q_norm", "kv_norm")
LATENT_EPS: Final = 1e-6
"""Epsilon of the norms of latents in Transformers, for any ``rms_norm_eps``."""
EPS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "norm_epsilon")
BASE = ("rope_theta", "rotary_emb_base")


def settings_of_fields(config: Mapping[str, Any], *, model: Model, source: str) -> Settings:
    """Numerical settings of a language config (epsilons, rotary, factors ..), else class defaults.

    Raises:
        ModelError: a number is out of its range.
    """
    architecture = model.architecture
    own = CLASSES.get(architecture, UNKNOWN)
    config = with_class_rotary_fields(config, own)
    fields, rope = Fields(config, source), rotary_settings(config)
    spelled = next((name for name in EPS if config.get(name) is not None), EPS[0])
    eps = fields.number(spelled, minimum=0.0, maximum=1.0, default=own.eps)
    written = config if rope.get("rope_theta") is None else rope
    base = Fields(dict(written), source).number(
        *BASE, minimum=1.0, maximum=1e12, default=own.rope_base or 1.0
    )
    longer = rotary_extension({ORIGINAL: own.trained or None, **config}, source=source)
    if own.norms_turned and _has_qk_norm(model) and isinstance(longer, (YarnRotary, LongRotary)):
        longer = replace(longer, scale=1.0)
    return Settings(
        rope_base=float(base),
        longer=longer,
        eps=float(eps),
        rope_share=min(_share(fields, own), 1.0),
        rope_pairs=not own.reads_interleave or bool(config.get("rope_interleave", True)),
        local_rope_base=_local_base(config, own),
        first_position=own.first_position,
        step_limits=_step_limits(config, model, own, fields),
        gate_limit=(
            fields.number("swiglu_limit", minimum=1e-3, maximum=1e6, default=7.0)
            if has_clamped_gate(model)
            else 7.0
        ),
        gate_slope=(
            fields.number("swiglu_alpha", minimum=1e-3, maximum=1e6, default=QUICK)
            if own.reads_slope
            else QUICK
        ),
        score_factor=latent_score_factor(config, longer=longer) * _width_factor(fields, own),
        plain_scores=own.plain_scores,
        norms_centred=own.centred,
        embed_factor=(
            sqrt(fields.hidden())
            if own.embed_scaled
            else _factor(fields, own, "embedding_multiplier")
        ),
        residual_factor=_factor(fields, own, "residual_multiplier"),
        logits_factor=_factor(fields, own, "logit_scale")
        * _factor(fields, own, "lm_head_multiplier")
        * _tied_factor(fields, own)
        / _factor(fields, own, "logits_scaling"),
        logits_cap=logits_cap_of(config, own) if own.reads_cap else 0.0,
        activation=_activation_of(config, model),
        shares_add_up=weights_add_up(config, own) is not False,
        sigmoid_scores=own.sigmoid,
        bias_reach=(
            fields.integer("relative_attention_max_distance", default=128)
            if _has_score_bias(model)
            else 128
        ),
        temper=_query_growth(fields, model),
        share_factor=fields.number(
            "routed_scaling_factor", minimum=0.0, maximum=1e6, default=own.share_factor
        ),
        padding_row=padding_row(config, model=model, source=source),
        load_balancing=load_balancing(config, model=model, source=source),
        router_noise=router_noise(config, model=model, source=source),
        dropout=dropout_probabilities(config, model=model),
        other_losses=other_losses(config, model=model),
        image=image_input(config, model=model, source=source),
        turns=(
            text_image_rotary(config, usual=own.axes, source=source)
            if IMAGE in {b.sequence for b in model.blocks}
            else None
        ),
        own=(*_latent_norms(config, eps), *tower_settings(config, model=model, source=source)),
    )


def _latent_norms(config: Mapping[str, Any], eps: float) -> tuple[tuple[str, Settings], ...]:
    """(name, settings of epsilon 1e-6) of latent attention's norms if `eps` differs; else empty."""
    apart = config.get("kv_lora_rank") and eps != LATENT_EPS
    return tuple((name, Settings(eps=LATENT_EPS)) for name in LATENT_NORMS) if apart else ()


def with_class_rotary_fields(config: Mapping[str, Any], own: ClassSettings) -> Mapping[str, Any]:
    """The configuration with the class's default rotary fields, if it has none."""
    return (
        {**config, "rope_parameters": own.rope}
        if own.rope and not rotary_settings(config)
        else config
    )


def _local_base(config: Mapping[str, Any], own: ClassSettings) -> float:
    """Base of rotary positions of layers with a window; 0: the same base as all layers."""
    if own.local_base is None:
        return 0.0
    written = (local_rope_of(config).get("rope_theta"), config.get("rope_local_base_freq"))
    return next((found for one in written if (found := number_or_none(one))), own.local_base)


def _query_growth(fields: Fields, model: Model) -> tuple[float, float]:
    """(``floor_scale`` in positions, ``attn_scale``) of query scaling by position, or defaults."""
    positions, strength = Settings().temper
    if not any(o.tempered for b in model.blocks for o in b.operators):
        return positions, strength
    return (
        fields.number("floor_scale", minimum=1e-3, maximum=1e12, default=positions),
        fields.number("attn_scale", minimum=0.0, maximum=1e6, default=strength),
    )


def _has_qk_norm(model: Model) -> bool:
    """True if the model has a norm inside attention, such as of queries and keys."""
    return any(
        o.kind is OperatorKind.NORM and o.klass is OperatorClass.ATTN
        for b in model.blocks
        for o in b.operators
    )


def has_scan(model: Model) -> bool:
    """True if the model has a recurrence (Mamba or gated delta net)."""
    return any(o.scan is not None for b in model.blocks for o in b.operators)


def has_clamped_gate(model: Model) -> bool:
    """True if the model has a clamped gate."""
    return any(o.clamped for b in model.blocks for o in b.operators)


def _has_score_bias(model: Model) -> bool:
    """True if attention scores have learned biases by distance."""
    return any(o.biased for b in model.blocks for o in b.operators)


def _share(fields: Fields, own: ClassSettings) -> float:
    """Share of a head's width with rotary positions; 1.0 if the class reads no share."""
    if not own.rope_share:
        return 1.0
    if own.turned:
        width = fields.head_dim()
        # A null count means the whole head; only an absent one is the class's.
        absent = own.turned if not fields.written("rotary_dim") else width
        return fields.integer("rotary_dim", maximum=MAX_HEAD_DIM, default=absent) / width
    return rotary_share(fields.mapping, usual=own.usual_share)


def _factor(fields: Fields, own: ClassSettings, name: str) -> float:
    """Factor in field `name`, else the class's default; 1.0 if the class ignores the field."""
    usual = own.factors.get(name)
    return 1.0 if usual is None else fields.number(name, minimum=1e-9, maximum=1e9, default=usual)


def _tied_factor(fields: Fields, own: ClassSettings) -> float:
    """hidden^-0.5 for a tied head of T5's kind (or by ``scale_decoder_outputs``), else 1.0.

    ``scale_decoder_outputs`` overrides ``tie_word_embeddings``.
    """
    scaled = own.tied_scaled and fields.flag(
        "scale_decoder_outputs", default=fields.flag("tie_word_embeddings", default=True)
    )
    return fields.hidden() ** -0.5 if scaled else 1.0


def logits_cap_of(config: Mapping[str, Any], own: ClassSettings) -> float:
    """Soft cap of the logits: ``final_logit_softcapping``, else the class default; 0 = none.

    A null value means none; the class's default is only for an absent field.
    """
    return number_or_none(config.get("final_logit_softcapping", own.final_cap)) or 0.0


def _width_factor(fields: Fields, own: ClassSettings) -> float:
    """Factor of attention scores on top of 1 / sqrt(head width), by fields of the class; else 1.0.

    A class may divide by the root of another width, or have its own factor.
    """
    if "attention_multiplier" in own.factors:
        return _factor(fields, own, "attention_multiplier") * sqrt(fields.head_dim())
    if not own.score_width:
        return 1.0
    width = fields.number(
        "query_pre_attn_scalar", minimum=1e-3, maximum=1e6, default=own.score_width
    )
    return sqrt(fields.integer("head_dim", maximum=MAX_HEAD_DIM) / width)


def written_activation(config: Mapping[str, Any], model: Model) -> tuple[str, set[bool]]:
    """(activation as written or by class default, set of gate flags of feed-forwards)."""
    language = [b for b in model.blocks if b.sequence != IMAGE]
    gated = {
        o.gated
        for b in language
        for o in b.operators
        if o.kind is OperatorKind.ACTIVATION and len(o.inputs) == 1
    }
    own = CLASSES.get(model.architecture, UNKNOWN)
    asked = next((str(config[k])[:40] for k in ACTIVATION if config.get(k)), own.activation)
    return own.legacy.get(asked, asked), gated


def _activation_of(config: Mapping[str, Any], model: Model) -> str:
    """Our name of an unusual activation; empty for the usual, an unknown or a clamped one."""
    asked, gated = written_activation(config, model)
    found = SPELLED.get(asked, "")
    return (
        ""
        if has_clamped_gate(model) or len(gated) != 1 or {USUAL[g] for g in gated} == {found}
        else found
    )


def weights_add_up(config: Mapping[str, Any], own: ClassSettings) -> bool | None:
    """True if the weights of chosen experts are normalized to add up to one; None if unknown."""
    return (
        bool(config["norm_topk_prob"])
        if own.reads_norm and "norm_topk_prob" in config
        else own.scores_add_up
    )


def bounds_of_pair(limit: Sequence[object]) -> tuple[float, float]:
    """(low, high) of a pair of JSON bounds; a null bound is 0 or infinity."""
    low, high = (number_or_none(end) for end in (*limit, None, None)[:2])
    return low or 0.0, inf if high is None else high


def _step_limits(
    config: Mapping[str, Any], model: Model, own: ClassSettings, fields: Fields
) -> tuple[float, float]:
    """(low, high) bounds of a recurrence's time steps; (0, inf) = no bounds."""
    if own.least_step:
        return fields.number("time_step_min", minimum=0.0, maximum=1e6, default=own.least_step), inf
    limit = config.get("time_step_limit")
    if limit is None or not has_scan(model):
        return 0.0, inf
    low, high = (
        bounds_of_pair(limit)
        if isinstance(limit, (list, tuple)) and len(limit) == 2
        else (1.0, 0.0)
    )
    if not 0.0 <= low < high:
        fields.fail(
            f"time_step_limit = {value_text(limit)} is no pair of bounds",
            hint="give a smaller and a larger number, or null",
        )
    return low, high
