"""Settings in config.json that a published model class computes and our operators do not."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.families.fields.activation_names import SPELLED
from shardwright.model.families.fields.config_class_defaults import (
    BY_LAYER,
    CLASSES,
    FACTORS,
    UNKNOWN,
    ClassSettings,
)
from shardwright.model.families.fields.embedding_padding_row import padding_difference
from shardwright.model.families.fields.rotary_fields import (
    BY_LENGTH,
    COMPUTED,
    ORIGINAL,
    local_rope_of,
    number_or_none,
    rotary_extension,
    rotary_kind,
    rotary_settings,
    rotary_share,
)
from shardwright.model.families.images.tower_settings_by_architecture import (
    image_differences,
)
from shardwright.model.families.numerical_settings import (
    ACTIVATION,
    bounds_of_pair,
    has_clamped_gate,
    has_scan,
    logits_cap_of,
    weights_add_up,
    with_class_rotary_fields,
    written_activation,
)
from shardwright.model.ir.config_json_field_access import value_text
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import (
    ACTIVATIONS,
    QUICK,
    USUAL,
)
from shardwright.model.ir.operator import OperatorKind


def differences(config: Mapping[str, Any], *, model: Model) -> tuple[str, ...]:
    """Message phrases on settings that our operators do not compute; empty if there are none.

    With such settings, published weights would not give the published losses.
    """
    own = CLASSES.get(model.architecture, UNKNOWN)
    config = with_class_rotary_fields(config, own)
    checks = (
        _activation(config, model),
        *_positions(config, model, own),
        padding_difference(config, model=model),
        *_routing(config, model, own),
        *_scores(config, own, model),
        *_scans(config, model),
        *image_differences(config, model=model),
    )
    return (*own.differs, *(c for c in checks if c))


def _falcon_h1_differences(config: Mapping[str, Any], model: Model) -> tuple[str, ...]:
    """Phrases on Falcon-H1's uncomputed factors and norms; () for other models."""
    if model.architecture != "FalconH1ForCausalLM":
        return ()
    biased = {"attention_in_multiplier": "attention_bias", "ssm_in_multiplier": "mamba_proj_bias"}
    return (
        *(
            f"{name} beside {bias}"
            for name, bias in biased.items()
            if config.get(name, 1.0) != 1.0 and config.get(bias)
        ),
        (
            "norms before gates (mamba_norm_before_gate)"
            if config.get("mamba_rms_norm") and config.get("mamba_norm_before_gate", True)
            else ""
        ),
    )


def _activation(config: Mapping[str, Any], model: Model) -> str:
    """Phrase on an activation that our operators do not compute; else empty."""
    asked, gated = written_activation(config, model)
    own = CLASSES.get(model.architecture, UNKNOWN)
    if has_clamped_gate(model) and asked not in ("", "silu", "quick_gelu"):
        return f"activation {asked} of a clamped gate"
    names = {
        own.legacy.get(str(config[k]), str(config[k]))[:40] for k in ACTIVATION[:2] if config.get(k)
    }
    if len(names) > 1:
        return (
            f"hidden_act and hidden_activation that differ ({' and '.join(sorted(names))}), of"
            " which releases read one or the other"
        )
    if has_scan(model):
        beside = [str(config[k])[:40] for k in ("hidden_act", "mamba_hidden_act") if config.get(k)]
        other = next((name for name in beside if SPELLED.get(name) != "silu"), "")
        if other:
            return f"activation {other} beside a scan (ours is silu)"
    usual = {USUAL[g] for g in gated}
    same = (
        not asked or not gated or SPELLED.get(asked) in (usual if len(usual) > 1 else ACTIVATIONS)
    )
    return "" if same else f"activation {asked} (ours is {' or '.join(sorted(usual))})"


def _positions(config: Mapping[str, Any], model: Model, own: ClassSettings) -> tuple[str, ...]:
    """Phrases on rotary positions that are not computed; an empty text for each check passed."""
    if not own.rope_base:
        return ()
    rope = rotary_settings(config)
    kind = rotary_kind(rope)
    known = (*COMPUTED, *own.kinds)
    # What turns in proportion has a share of its own (`ProportionalRotary`).
    share = 1.0 if kind in own.kinds else rotary_share(config, usual=own.usual_share)
    widths = [
        o.reads[0].quantum
        for b in model.blocks
        if b.sequence != IMAGE
        for o in b.operators
        if o.kind is OperatorKind.ROTARY
    ]
    unlisted = (
        kind == "longrope"
        and rotary_extension({ORIGINAL: own.trained or None, **config}, source=model.architecture)
        is None
    )
    odd = not config.get("kv_lora_rank") and any(
        int(width * (min(share, 1.0) if own.rope_share else 1.0)) % 2 for width in widths
    )
    turned = [
        (o.choice, o.attention)
        for b in model.blocks
        for o in b.operators
        if o.kind is OperatorKind.INDEX
    ]
    narrow = any(
        one and shape and int(one.width * min(share, 1.0)) > shape.head_dim for one, shape in turned
    )
    local, local_kind = (
        number_or_none(config.get("rope_local_base_freq")),
        rotary_kind(local_rope_of(config)),
    )
    return (
        f"rotary positions of kind {kind}" if kind not in known else "",
        (
            f"rotary positions of kind {kind} of a text with images"
            if own.axes and kind in BY_LENGTH
            else ""
        ),
        "rotary positions without a factor for every pair (longrope)" if unlisted else "",
        BY_LAYER if local_rope_of(config) and own.local_base is None else "",
        (
            f"rotary positions of kind {local_kind} of layers with a window"
            if local_kind != "default"
            else ""
        ),
        "rotary positions of an odd number of elements" if odd else "",
        "heads of an indexer that are narrower than what turns of a head" if narrow else "",
        f"rotary positions of {share:g} of a head" if share != 1.0 and not own.rope_share else "",
        (
            f"rope_local_base_freq {local:g} for layers with a window"
            if local and own.local_base is None and local != config.get("rope_theta")
            else ""
        ),
    )


def _routing(config: Mapping[str, Any], model: Model, own: ClassSettings) -> tuple[str, ...]:
    """Phrases on routing that is not computed; an empty text for each check that passes."""
    shapes = [
        o.experts
        for b in model.blocks
        for o in b.operators
        if o.kind is OperatorKind.ROUTE and o.experts is not None
    ]
    if not shapes:
        return ()
    asked, scoring = config.get("norm_topk_prob"), config.get("scoring_func")
    other = not own.reads_norm and asked is not None and bool(asked) is not own.scores_add_up
    return (
        (
            "scores of chosen experts (norm_topk_prob), which are not known to add up to one"
            if weights_add_up(config, own) is None
            else ""
        ),
        (
            f"norm_topk_prob {str(asked)[:10].lower()}, which the published class does not read"
            if other
            else ""
        ),
        (
            f"scoring_func {str(scoring)[:40]}"
            if own.scoring and scoring not in (None, own.scoring)
            else ""
        ),
        (
            "topk_method greedy beside groups of experts"
            if shapes[0].groups and config.get("topk_method") == "greedy"
            else ""
        ),
    )


def _scores(config: Mapping[str, Any], own: ClassSettings, model: Model) -> tuple[str, ...]:
    """Phrases on score settings that are not computed; an empty text for each check that passes."""
    scalar, width = number_or_none(config.get("query_pre_attn_scalar")), config.get("head_dim")
    cap = 0.0 if own.reads_cap else logits_cap_of(config, own)
    alpha = number_or_none(config.get("swiglu_alpha"))
    others = [
        (name, number_or_none(config.get(name))) for name in FACTORS if name not in own.factors
    ]
    return (
        (
            f"query_pre_attn_scalar {scalar:g} beside head_dim {width}"
            if scalar and scalar != width and not own.score_width
            else ""
        ),
        f"final_logit_softcapping {cap:g}" if cap else "",
        (
            "scores that are not divided by the root of a head's width (scale_attn_weights: false)"
            if config.get("scale_attn_weights") is False
            else ""
        ),
        *(f"{name} {value:g}" for name, value in others if value not in (None, 1.0)),
        *(
            f"{name}, which the published class does not read"
            for name in own.leaves_out
            if config.get(name)
        ),
        *(
            f"{name} {value_text(config[name])}, where the published class has {value_text(value)}"
            for name, value in own.fixed.items()
            if config.get(name, value) not in (None, value)
        ),
        *_falcon_h1_differences(config, model),
        (
            f"swiglu_alpha {alpha:g}"
            if has_clamped_gate(model) and not own.reads_slope and alpha not in (None, QUICK)
            else ""
        ),
        "queries, keys and values between bounds (clip_qkv)" if config.get("clip_qkv") else "",
        (
            "biases by distance (alibi) that are divided by the root of a head's width"
            if config.get("alibi") and model.architecture == "FalconForCausalLM"
            else ""
        ),
        "scale_attn_by_inverse_layer_idx" if config.get("scale_attn_by_inverse_layer_idx") else "",
        (
            "post-norm residuals (apply_residual_connection_post_layernorm)"
            if config.get("apply_residual_connection_post_layernorm")
            else ""
        ),
    )


def _scans(config: Mapping[str, Any], model: Model) -> tuple[str, ...]:
    """A phrase on written time-step limits that the published class ignores, or one empty text."""
    limit = config.get("time_step_limit")
    own = CLASSES.get(model.architecture, UNKNOWN)
    other = (
        own.least_step
        and isinstance(limit, (list, tuple))
        and bounds_of_pair(limit) not in ((0.0, inf), (own.least_step, inf))
    )
    return ("time_step_limit, which the published class does not read" if other else "",)
