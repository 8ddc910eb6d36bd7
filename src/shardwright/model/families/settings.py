"""What a Hugging Face configuration says beyond sizes: numbers that are computed with, and what would be computed otherwise.

A field that is not written has the value of the family's configuration class in Transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from shardwright.model.ir.fields import Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import OperatorKind
from shardwright.model.ir.settings import LongerRotary, Settings

SILU, GELU = ("silu", "swish"), ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
ACTIVATION = ("hidden_act", "hidden_activation", "activation_function")
COMPUTED = ("default", "llama3", "linear")
"""Kinds of rotary positions."""
LATENT_EPS = 1e-6
"""Epsilon of the norms of latents in Transformers, whatever ``rms_norm_eps`` says."""
EPS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")
EMBEDDING_SCALED: Final = "the embedding is multiplied by the square root of its width"
BIASED: Final = "scores of attention are biased by distance"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSettings:
    """What a family's configuration class says where a configuration does not.

    Args:
        eps: of norms. rope_base: of rotary positions; 0: the family has none. differs: how what we compute differs from the published
            model, whatever the configuration says.
    """

    eps: float = 1e-6
    rope_base: float = 10000.0
    differs: tuple[str, ...] = ()


_PLAIN: Final = ClassSettings()
_NO_ROTARY: Final = ClassSettings(eps=1e-5, rope_base=0.0)
_SCALED: Final = ClassSettings(differs=(EMBEDDING_SCALED,))
CLASSES: Final[Mapping[str, ClassSettings]] = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"), _PLAIN),
    **dict.fromkeys(("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"), _PLAIN),
    **dict.fromkeys(("Olmo2ForCausalLM", "Phi3ForCausalLM"), ClassSettings(eps=1e-5)),
    "MixtralForCausalLM": ClassSettings(eps=1e-5, rope_base=1e6),
    **dict.fromkeys(("GemmaForCausalLM", "Gemma2ForCausalLM"), _SCALED),
    "Gemma3ForCausalLM": ClassSettings(rope_base=1e6, differs=(EMBEDDING_SCALED,)),
    **dict.fromkeys(("GPT2LMHeadModel", "BloomForCausalLM", "MambaForCausalLM", "Mamba2ForCausalLM"), _NO_ROTARY),
    **dict.fromkeys(
        ("T5ForConditionalGeneration", "MT5ForConditionalGeneration", "UMT5ForConditionalGeneration"),
        ClassSettings(rope_base=0.0, differs=(BIASED,)),
    ),
}
"""By architecture. Values as in the configuration classes of Transformers 5 (github.com/huggingface/transformers)."""


def settings_of_fields(config: Mapping[str, Any], *, architecture: str, source: str) -> Settings:
    """Base of rotary positions, how they were made longer, and epsilon of norms.

    Raises:
        ModelError: one of them is no number that it can be.
    """
    own, fields = CLASSES.get(architecture, _PLAIN), Fields(config, source)
    rope = _rope(config)
    spelled = next((name for name in EPS if config.get(name) is not None), EPS[0])
    eps = fields.number(spelled, minimum=0.0, maximum=1.0, default=own.eps)
    written = {name: rope["rope_theta"] for name in ("rope_theta",) if config.get(name) is None and rope.get(name) is not None}
    base = Fields({**config, **written}, source).number("rope_theta", minimum=1.0, maximum=1e12, default=own.rope_base or 1.0)
    return Settings(rope_base=float(base), longer=_longer(rope, source), eps=float(eps))


def differences(config: Mapping[str, Any], *, model: Model) -> tuple[str, ...]:
    """What a configuration asks for that our operators do not compute, so that published weights would not give the published losses."""
    own = CLASSES.get(model.architecture, _PLAIN)
    checks = (_activation(config, model), *_positions(config, own), *_routing(config, model), *_scores(config), *_scans(config, model))
    return (*own.differs, *(c for c in checks if c))


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of rotary positions in either spelling."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found if isinstance(found, dict) else {}


def _longer(rope: Mapping[str, Any], source: str) -> LongerRotary | None:
    """How rotary positions were made longer, in the two forms that are computed."""
    kind = _kind(rope)
    if kind not in COMPUTED[1:]:
        return None
    fields = Fields(dict(rope), f"{source}: rope_scaling")
    factor = fields.number("factor", minimum=1.0, maximum=1e6)
    if kind == "linear":
        return LongerRotary(factor=factor)
    low, high = (fields.number(f"{name}_freq_factor", minimum=1e-3, maximum=1e6) for name in ("low", "high"))
    trained = fields.number("original_max_position_embeddings", minimum=1.0, maximum=1e12)
    if low >= high:
        fields.fail(f"low_freq_factor {low:g} is not below high_freq_factor {high:g}", hint="see the published configuration")
    return LongerRotary(factor=factor, trained=trained, low=low, high=high)


def _kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or COMPUTED[0])[:40]


def _activation(config: Mapping[str, Any], model: Model) -> str:
    operators = [o for b in model.blocks for o in b.operators if o.kind is OperatorKind.ACTIVATION and len(o.inputs) == 1]
    name = next((config[k] for k in ACTIVATION if config.get(k)), None)
    if not operators or name is None:
        return ""
    same = SILU if operators[0].gated else GELU
    return "" if name in same else f"activation {str(name)[:40]} (ours is {same[0]})"


def _number(value: object) -> float | None:
    """A number that was written; None for none, and for what is no number."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _positions(config: Mapping[str, Any], own: ClassSettings) -> tuple[str, ...]:
    if not own.rope_base:
        return ()
    rope = _rope(config)
    kind = _kind(rope)
    share = _number(config.get("partial_rotary_factor")) or _number(rope.get("partial_rotary_factor")) or 1.0
    local = _number(config.get("rope_local_base_freq"))
    by_layer = any(isinstance(value, dict) for value in rope.values())
    return (
        f"rotary positions of kind {kind}" if kind not in COMPUTED else "",
        "rotary positions that differ by type of layer" if by_layer else "",
        f"rotary positions of {share:g} of a head" if share != 1.0 else "",
        f"rope_local_base_freq {local:g} for layers with a window" if local and local != config.get("rope_theta") else "",
        "rotary positions in halves (rope_interleave: false)" if config.get("rope_interleave") is False else "",
    )


def _routing(config: Mapping[str, Any], model: Model) -> tuple[str, ...]:
    shapes = [o.experts for b in model.blocks for o in b.operators if o.kind is OperatorKind.ROUTE and o.experts is not None]
    if not shapes:
        return ()
    # Mixtral's class always makes the chosen scores add up to one; other classes have a field for it, false unless it is written.
    normed = model.architecture == "MixtralForCausalLM" or config.get("norm_topk_prob", model.architecture == "DeepseekV3ForCausalLM")
    factor = _number(config.get("routed_scaling_factor", 2.5 if model.architecture == "DeepseekV3ForCausalLM" else 1.0)) or 1.0
    return (
        "" if normed else "scores of chosen experts are not made to add up to one (norm_topk_prob)",
        f"routed_scaling_factor {factor:g}" if factor != 1.0 else "",
        f"routing limited to {shapes[0].groups} groups of experts" if shapes[0].groups else "",
    )


def _scores(config: Mapping[str, Any]) -> tuple[str, ...]:
    scalar, width = _number(config.get("query_pre_attn_scalar")), config.get("head_dim")
    cap, eps = _number(config.get("final_logit_softcapping")), _number(config.get("rms_norm_eps"))
    latent = config.get("kv_lora_rank") and eps is not None and eps != LATENT_EPS
    return (
        f"query_pre_attn_scalar {scalar:g} beside head_dim {width}" if scalar and scalar != width else "",
        f"final_logit_softcapping {cap:g}" if cap else "",
        f"rms_norm_eps {eps:g} beside {LATENT_EPS:g} in norms of latents" if latent else "",
        "scores that are not divided by the root of a head's width (scale_attn_weights: false)"
        if config.get("scale_attn_weights") is False
        else "",
        "scale_attn_by_inverse_layer_idx" if config.get("scale_attn_by_inverse_layer_idx") else "",
        "post-norm residuals (apply_residual_connection_post_layernorm)" if config.get("apply_residual_connection_post_layernorm") else "",
    )


def _scans(config: Mapping[str, Any], model: Model) -> tuple[str, ...]:
    groups = max((o.scan.groups for b in model.blocks for o in b.operators if o.scan is not None), default=0)
    limit = config.get("time_step_limit")
    bounded = groups and isinstance(limit, (list, tuple)) and [_number(end) for end in limit] not in ([0.0, inf], [0.0, None])
    return ("steps of a scan that are kept between bounds (time_step_limit)" if bounded else "",)
