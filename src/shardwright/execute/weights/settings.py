"""What a Hugging Face configuration says beyond sizes: numbers that we compute with, and what we would compute otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.errors import DataError, ModelError
from shardwright.execute.transport.torch_device import LongerRotary, Settings
from shardwright.execute.weights.families import Family, family_of
from shardwright.execute.weights.read import CONFIG
from shardwright.model.families.huggingface import parse_config
from shardwright.model.ir.fields import Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import OperatorKind

SILU, GELU = ("silu", "swish"), ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
ACTIVATION = ("hidden_act", "hidden_activation", "activation_function")
COMPUTED = ("default", "llama3", "linear")
"""Kinds of rotary positions."""
LATENT_EPS = 1e-6
"""Epsilon of the norms of latents in Transformers, whatever ``rms_norm_eps`` says."""


def settings_of(folder: Path, *, model: Model, seed: int = 0, strict: bool = True) -> Settings:
    """Base of rotary positions and epsilon of norms from the ``config.json`` of a folder.

    Args:
        strict: refuse a configuration under which the published model computes what ours does not.

    Raises:
        DataError: no such file; a number lacks; with `strict`, every difference by name.
    """
    path, family = folder / CONFIG, family_of(model.architecture)
    try:
        config = parse_config(path.read_bytes(), source=str(path))
        fields = Fields(config, str(path))
        eps = fields.number(family.eps, "norm_eps", minimum=0.0, maximum=1.0)
        longer = _longer(_rope(config), path)
        base = fields.number("rope_theta", minimum=1.0, maximum=1e12, default=_rope(config).get("rope_theta") or family.rope_base or 1.0)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", hint="give a folder with a config.json") from None
    except ModelError as error:
        raise DataError(error.message, hint=error.hint) from None
    found = differences(config, model=model)
    if strict and found:
        raise DataError(
            f"{path}: with these weights the published model computes what ours does not: {'; '.join(found)}",
            hint="use a model without them; weights can be converted all the same",
        )
    return Settings(rope_base=float(base), longer=longer, eps=eps, seed=seed)


def differences(config: Mapping[str, Any], *, model: Model) -> tuple[str, ...]:
    """What a configuration asks for that our operators do not compute, so that published weights would not give the published losses."""
    family = family_of(model.architecture)
    checks = (_activation(config, model), *_positions(config, family), *_routing(config, model), *_scores(config))
    return (*family.differs, *(c for c in checks if c))


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of rotary positions in either spelling."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found if isinstance(found, dict) else {}


def _longer(rope: Mapping[str, Any], path: Path) -> LongerRotary | None:
    """How rotary positions were made longer, in the two forms that are computed."""
    kind = _kind(rope)
    if kind not in COMPUTED[1:]:
        return None
    fields = Fields(dict(rope), f"{path}: rope_scaling")
    factor = fields.number("factor", minimum=1.0, maximum=1e6)
    if kind == "linear":
        return LongerRotary(factor=factor)
    low, high = (fields.number(f"{name}_freq_factor", minimum=1e-3, maximum=1e6) for name in ("low", "high"))
    trained = fields.number("original_max_position_embeddings", minimum=1.0, maximum=1e12)
    if low >= high:
        raise DataError(f"{path}: low_freq_factor {low:g} is not below high_freq_factor {high:g}", hint="see the published configuration")
    return LongerRotary(factor=factor, trained=trained, low=low, high=high)


def _kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or COMPUTED[0])


def _activation(config: Mapping[str, Any], model: Model) -> str:
    operators = [o for b in model.blocks for o in b.operators if o.kind is OperatorKind.ACTIVATION and len(o.inputs) == 1]
    name = next((config[k] for k in ACTIVATION if config.get(k)), None)
    if not operators or name is None:
        return ""
    same = SILU if operators[0].gated else GELU
    return "" if name in same else f"activation {name} (ours is {same[0]})"


def _positions(config: Mapping[str, Any], family: Family) -> tuple[str, ...]:
    if not family.rope_base:
        return ()
    rope = _rope(config)
    kind = _kind(rope)
    share = config.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1.0
    local = config.get("rope_local_base_freq")
    return (
        f"rotary positions of kind {kind}" if kind not in COMPUTED else "",
        f"rotary positions of {share:g} of a head" if share != 1.0 else "",
        f"rope_local_base_freq {local:g} for layers with a window" if local and local != config.get("rope_theta") else "",
    )


def _routing(config: Mapping[str, Any], model: Model) -> tuple[str, ...]:
    shapes = [o.experts for b in model.blocks for o in b.operators if o.kind is OperatorKind.ROUTE and o.experts is not None]
    if not shapes:
        return ()
    # Mixtral's class always makes the chosen scores add up to one; other classes have a field for it, false unless it is written.
    normed = model.architecture == "MixtralForCausalLM" or config.get("norm_topk_prob", model.architecture == "DeepseekV3ForCausalLM")
    factor = config.get("routed_scaling_factor", 2.5 if model.architecture == "DeepseekV3ForCausalLM" else 1.0)
    return (
        "" if normed else "scores of chosen experts are not made to add up to one (norm_topk_prob)",
        f"routed_scaling_factor {factor:g}" if factor != 1.0 else "",
        f"routing limited to {shapes[0].groups} groups of experts" if shapes[0].groups else "",
    )


def _scores(config: Mapping[str, Any]) -> tuple[str, ...]:
    scalar, width = config.get("query_pre_attn_scalar"), config.get("head_dim")
    cap, eps = config.get("final_logit_softcapping"), config.get("rms_norm_eps")
    return (
        f"query_pre_attn_scalar {scalar:g} beside head_dim {width}" if scalar and scalar != width else "",
        f"final_logit_softcapping {cap:g}" if cap else "",
        f"rms_norm_eps {eps:g} beside {LATENT_EPS:g} in norms of latents" if config.get("kv_lora_rank") and eps != LATENT_EPS else "",
        "scale_attn_by_inverse_layer_idx" if config.get("scale_attn_by_inverse_layer_idx") else "",
        "post-norm residuals (apply_residual_connection_post_layernorm)" if config.get("apply_residual_connection_post_layernorm") else "",
    )
