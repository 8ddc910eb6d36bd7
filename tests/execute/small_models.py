"""Catalog models with small numbers in their configurations: the same blocks, each once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from shardwright.model.catalog.load_model_by_name import ENTRIES
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model, Run

SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "swa_num_attention_heads"), 4
    ),
    **dict.fromkeys(
        (
            "num_key_value_heads",
            "num_kv_heads",
            "swa_num_key_value_heads",
            "num_global_key_value_heads",
        ),
        2,
    ),
    **dict.fromkeys(("head_dim", "global_head_dim", "mamba_head_dim", "mamba_d_head"), 16),
    **dict.fromkeys(
        ("swa_head_dim", "v_head_dim", "swa_v_head_dim", "d_kv", "qk_nope_head_dim"), 8
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "d_ff",
            "intermediate_size_mlp",
            "dense_intermediate_size",
        ),
        20,
    ),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 12
    ),
    **dict.fromkeys(
        ("moe_shared_expert_intermediate_size", "moe_latent_size", "q_lora_rank", "kv_lora_rank"),
        12,
    ),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 6),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts"), 2),
    **dict.fromkeys(("mamba_num_heads", "mamba_n_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("n_groups", "mamba_n_groups", "linear_num_key_heads", "n_group"), 2),
    **dict.fromkeys(
        (
            "linear_key_head_dim",
            "linear_value_head_dim",
            "ssm_state_size",
            "state_size",
            "mamba_d_state",
            "mamba_dt_rank",
        ),
        6,
    ),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 3),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 3),
    "mamba_d_ssm": 64,
    "topk_group": 1,
    "qk_rope_head_dim": 4,
    "vocab_size": 19,
    "max_position_embeddings": 32,
    "n_positions": 32,
}


def small_config(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with every size above its small one made small."""
    result = {}
    for key, value in config.items():
        if isinstance(value, dict):
            result[key] = small_config(value)
        elif isinstance(value, int) and not isinstance(value, bool) and key in SIZES and value > 1:
            result[key] = min(value, SIZES[key])
        else:
            result[key] = value
    if result.get("num_heads") == 4 and "state_size" in result:
        result["head_dim"] = 16
    if (
        config.get("num_key_value_heads") == config.get("num_attention_heads")
        and "num_key_value_heads" in config
    ):
        result["num_key_value_heads"] = result["num_attention_heads"]
    return result


@cache
def small_model(name: str) -> Model:
    """A catalog model made small, with each of its blocks once."""
    entry = next(e for e in ENTRIES if e.names[0] == name)
    model = model_from_config(small_config(dict(entry.config)), name=name)
    stands: dict[str, str] = {}
    first: dict[int, str] = {}
    runs: list[Run] = []
    for run in model.runs:
        inputs = tuple(stands[i] for i in run.inputs)
        if run.block in first:
            stands[run.name] = inputs[0] if inputs else first[run.block]
            continue
        first[run.block] = stands[run.name] = run.name
        runs.append(replace(run, count=1, inputs=inputs))
    return replace(model, runs=tuple(runs))
