"""Find fields of a config.json that its builder does not read: harmless, misspelt or unknown.

What every family's builder may read, and with which path, is in ``reads.json``;
`tools/config_fields.py` finds it by running the builders, and a test holds the two together.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any, Final

from shardwright.model.families.family_registry import ARCHITECTURES
from shardwright.model.ir.config_json_field_access import Fields, value_text

INERT: Final = {
    "names and versions": (
        "_name_or_path name_or_path architectures model_type auto_map transformers_version"
        " _commit_hash finetuning_task problem_type task_specific_params prefix id2label label2id"
        " tokenizer_class _attn_implementation* attn_implementation pruned_heads is_decoder"
        " is_encoder_decoder add_cross_attention tie_encoder_decoder cross_attention_hidden_size"
        " gradient_checkpointing"
    ),
    "tokens of the vocabulary": (
        "*_token_id *_token_ids *_token_index *_placeholder bad_words_ids suppress_tokens"
        " begin_suppress_tokens image_seq_length video_seq_length default_output_length"
        " vision_soft_tokens_per_image"
    ),
    "generation and outputs": (
        "use_cache cache_implementation do_sample num_beams num_beam_groups num_return_sequences"
        " temperature top_k top_p typical_p repetition_penalty length_penalty diversity_penalty"
        " no_repeat_ngram_size encoder_no_repeat_ngram_size early_stopping"
        " exponential_decay_length_penalty max_length min_length forced_bos_token_id"
        " forced_eos_token_id remove_invalid_values output_scores return_dict"
        " return_dict_in_generate output_attentions output_hidden_states output_router_logits"
        " torchscript tf_legacy_loss chunk_size_feed_forward use_mamba_kernels use_associative_scan"
        " num_logits_to_keep calc_logits_for_entire_prompt summary_* ignore_index"
        " keys_to_ignore_at_inference output_past"
    ),
    "first values of weights": (
        "initializer_range initializer_factor init_std embedding_initializer_range mamba_init*"
        " rescale_* time_step_* mamba_dt_min mamba_dt_max mamba_dt_init* use_mup mup_*"
        " layer_norm_init*"
    ),
    "number formats of the file": (
        "torch_dtype dtype use_bfloat16 quantization_config compression_config *_dtype"
        " residual_in_fp32 attention_softmax_in_fp32 scale_attn_weights"
        " scale_attn_by_inverse_layer_idx reorder_and_upcast_attn"
    ),
    "dropout, which the job says": "*dropout* *_pdrop *_drop",
    "constants of element-wise functions": (
        "*_eps *_epsilon rope_* *_rope_theta *_rope_interleave rotary_* *_rotary_factor use_mrope"
        " max_position_embeddings original_max_position_embeddings initial_context_length"
        " n_positions n_ctx max_seq_len seq_length qk_head_dim *_softcapping query_pre_attn_scalar"
        " hidden_act hidden_activation activation activation_function mlp_hidden_act"
        " mamba_hidden_act dense_act_fn projector_hidden_act swiglu_* *_multiplier *_multipliers"
        " logits_scaling logit_scale *_scaling_factor attn_scale attention_value_scale"
        " attn_temperature_tuning floor_scale use_gemma_norm position_embedding_type"
    ),
    "choice and loss of a router": (
        "router_aux_loss_coef router_jitter_noise router_z_loss_coef aux_loss_alpha seq_aux"
        " norm_topk_prob scoring_func topk_method moe_router_*"
    ),
    "how one site ran it": (
        "pretraining_tp ep_size tp_size slow_but_exact moe_shared_expert_overlap init_device"
        " verbose skip_bias_add* bias_dropout_fusion masked_softmax_fusion fused_add_norm"
    ),
}
"""Reason why a field changes neither sizes nor work -> field names, with wildcards ``*``."""
_PATTERNS: Final = tuple(pattern for names in INERT.values() for pattern in names.split())
_EXACT: Final = frozenset(p for p in _PATTERNS if "*" not in p)
_WILD: Final = tuple(p for p in _PATTERNS if "*" in p)
_WITHIN: Final = tuple(name.strip("*") for name in _WILD if name[0] == name[-1] == "*")
_BEGIN: Final = tuple(name[:-1] for name in _WILD if name[0] != "*")
_END: Final = tuple(name[1:] for name in _WILD if name[-1] != "*")
NEAR: Final = 0.9
"""Least similarity (`difflib`) of a misspelt name to the right name: about one letter in ten."""


def unread_fields(fields: Fields) -> tuple[str, ...]:
    """Names of fields that no builder read and that may matter; ModelError for a likely mistake.

    Raises:
        ModelError: a field of another family with a value that has an effect, or a field that
        is spelt like a field of this family.
    """
    unread = {
        name: value
        for name, value in fields.reading.unread().items()
        if not _is_empty(value) and not is_inert(name)
    }
    if not unread:
        return ()
    known = {without_indices(name) for name in fields.reading.names}
    known |= {
        path + name
        for path, target in fields.reading.builders.items()
        for name in fields_by_builder().get(target, ())
    }
    unknown = {name: value for name, value in unread.items() if without_indices(name) not in known}
    for name, value in unknown.items():
        _refuse_likely_mistake(fields, name, value, known=known)
    return tuple(sorted({without_indices(name) for name in unknown}))


def _is_empty(value: object) -> bool:
    """True if a value is empty, zero, false or null."""
    return value is None or value is False or value in (0, "", [], {})


def is_inert(name: str) -> bool:
    """True if a field's name shows that its value changes neither sizes nor work."""
    last = name.rpartition(".")[2]
    return (
        last in _EXACT
        or last.startswith(_BEGIN)
        or last.endswith(_END)
        or any(part in last for part in _WITHIN)
    )


def _refuse_likely_mistake(fields: Fields, name: str, value: Any, *, known: set[str]) -> None:
    """Raise ModelError for an unread field near a known name, or that another family reads."""
    path, target = fields.reading.read_by(name)
    place, _, last = without_indices(name).rpartition(".")
    beside = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == place]
    matches = get_close_matches(last, beside, n=1, cutoff=NEAR)
    message = f"{name} = {value_text(value)} is not a field of {ARCHITECTURES[target]}"
    if matches:
        fields.fail(message, hint=f"did you mean {matches[0]}? else remove it")
    readers = sorted(
        ARCHITECTURES[other]
        for other, names in fields_by_builder().items()
        if without_indices(name).removeprefix(path) in names
    )
    if readers and (value is True or value != 1):
        more = f" and {len(readers) - 3} more" if len(readers) > 3 else ""
        fields.fail(
            message,
            hint=(
                f"{', '.join(readers[:3])}{more} read it: is the architecture right? else remove"
                " the field"
            ),
        )


def without_indices(name: str) -> str:
    """Field name with empty list indices: ``block_configs[].attention.no_op``."""
    return re.sub(r"\[\d+\]", "[]", name)


@cache
def fields_by_builder() -> dict[str, frozenset[str]]:
    """Builder -> names (with paths) of all fields that it may read."""
    text = (
        resources.files("shardwright.model.families")
        .joinpath("reads.json")
        .read_text(encoding="utf-8")
    )
    return {target: frozenset(names.split()) for target, names in json.loads(text).items()}
