"""Small checkpoints in the layout of Transformers, written without our tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

BASE: Config = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "vocab_size": 19,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500.0,
    "hidden_act": "silu",
    "pad_token_id": None,
}
LATENT: Config = {
    **BASE,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}
CONFIGS: dict[str, Config] = {
    "llama": {**BASE, "architectures": ["LlamaForCausalLM"]},
    "llama tied": {
        **BASE,
        "architectures": ["LlamaForCausalLM"],
        "tie_word_embeddings": True,
        "attention_bias": True,
    },
    "mistral": {**BASE, "architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen2": {**BASE, "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {
        **BASE,
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "olmo2": {**BASE, "architectures": ["Olmo2ForCausalLM"]},
    "phi3": {**BASE, "architectures": ["Phi3ForCausalLM"]},
    "mixtral": {
        **BASE,
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2 moe": {
        **BASE,
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 14,
        "norm_topk_prob": True,
    },
    "qwen3 moe": {
        **BASE,
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "decoder_sparse_step": 2,
        "norm_topk_prob": True,
    },
    "deepseek v2": {
        **LATENT,
        "architectures": ["DeepseekV2ForCausalLM"],
        "q_lora_rank": None,
        "norm_topk_prob": False,
    },
    "deepseek v3": {**LATENT, "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": True},
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 32,
        "vocab_size": 19,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    },
    "bloom": {
        "architectures": ["BloomForCausalLM"],
        "hidden_size": 32,
        "n_head": 4,
        "n_layer": 2,
        "vocab_size": 19,
        "layer_norm_epsilon": 1e-5,
    },
    "mamba2": {
        "architectures": ["Mamba2ForCausalLM"],
        "hidden_size": 16,
        "num_heads": 4,
        "head_dim": 8,
        "state_size": 6,
        "n_groups": 2,
        "chunk_size": 4,
        "conv_kernel": 4,
        "num_hidden_layers": 2,
        "vocab_size": 19,
        "layer_norm_epsilon": 1e-5,
        "hidden_act": "silu",
    },
    "mamba": {
        "architectures": ["MambaForCausalLM"],
        "hidden_size": 16,
        "intermediate_size": 32,
        "state_size": 6,
        "time_step_rank": 5,
        "conv_kernel": 4,
        "num_hidden_layers": 2,
        "vocab_size": 19,
        "layer_norm_epsilon": 1e-5,
        "hidden_act": "silu",
    },
}
YARN: Config = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG: Config = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 5.0, 9.0],
}
CONFIGS |= {
    "llama yarn": {**CONFIGS["llama"], "rope_scaling": YARN},
    "qwen2 yarn": {
        **CONFIGS["qwen2"],
        "rope_scaling": {**YARN, "truncate": False, "beta_fast": 8.0, "attention_factor": None},
    },
    "deepseek v2 yarn": {
        **CONFIGS["deepseek v2"],
        "rope_scaling": {**YARN, "beta_slow": 0.25, "mscale": 0.7, "mscale_all_dim": 0.7},
    },
    "deepseek v3 yarn": {
        **CONFIGS["deepseek v3"],
        "rope_scaling": {**YARN, "beta_slow": 0.25, "mscale": 1.0, "mscale_all_dim": 0.5},
    },
    "deepseek v3 halves": {**CONFIGS["deepseek v3"], "rope_interleave": False},
    "llama dynamic": {**CONFIGS["llama"], "rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
    "llama dynamic, longer": {
        **CONFIGS["llama"],
        "rope_scaling": {"rope_type": "dynamic", "factor": 3.0},
        "max_position_embeddings": 5,
    },
    "phi3 short": {**CONFIGS["phi3"], "rope_scaling": LONG, "original_max_position_embeddings": 8},
    "phi3 long": {**CONFIGS["phi3"], "rope_scaling": LONG, "original_max_position_embeddings": 5},
    "phi3 partial": {**CONFIGS["phi3"], "partial_rotary_factor": 0.5},
}
"""Every form of rotary positions."""
SIX: Config = {"n_routed_experts": 6, "n_group": 3, "topk_group": 2, "num_experts_per_tok": 3}
CONFIGS |= {
    "qwen2 moe scores": {**CONFIGS["qwen2 moe"], "norm_topk_prob": False},
    "qwen3 moe scores": {**CONFIGS["qwen3 moe"], "norm_topk_prob": False},
    "deepseek v2 groups": {
        **CONFIGS["deepseek v2"],
        **SIX,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 16.0,
    },
    "deepseek v3 groups": {**CONFIGS["deepseek v3"], **SIX, "routed_scaling_factor": 2.5},
    "deepseek v3 scores": {
        **CONFIGS["deepseek v3"],
        "norm_topk_prob": False,
        "routed_scaling_factor": 0.5,
    },
}
"""Every form of routing."""
CONFIGS |= {
    "llama gelu": {**CONFIGS["llama"], "hidden_act": "gelu"},
    "qwen2 gelu": {**CONFIGS["qwen2"], "hidden_act": "gelu_pytorch_tanh"},
    "phi3 relu": {**CONFIGS["phi3"], "hidden_act": "relu"},
    "qwen3 moe quick": {**CONFIGS["qwen3 moe"], "hidden_act": "quick_gelu"},
    "gpt2 exact": {**CONFIGS["gpt2"], "activation_function": "gelu"},
    "gpt2 squared": {**CONFIGS["gpt2"], "activation_function": "relu2"},
    "gpt2 silu": {**CONFIGS["gpt2"], "activation_function": "silu"},
}
"""Every form of activations."""
GEMMA: Config = {
    **BASE,
    "head_dim": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_act": "gelu_pytorch_tanh",
}
CONFIGS |= {
    "gemma": {**GEMMA, "architectures": ["GemmaForCausalLM"]},
    "gemma old": {
        **GEMMA,
        "architectures": ["GemmaForCausalLM"],
        "hidden_activation": None,
        "hidden_act": "gelu",
    },
    "gemma2 uncapped": {
        **GEMMA,
        "architectures": ["Gemma2ForCausalLM"],
        "sliding_window": 4,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": None,
    },
}
LAYOUTS: dict[str, Config] = {
    **CONFIGS,
    "deepseek v3 mtp": {**CONFIGS["deepseek v3"], "num_nextn_predict_layers": 1},
    "gemma2": {**GEMMA, "architectures": ["Gemma2ForCausalLM"], "sliding_window": 4},
    "gemma3": {**GEMMA, "architectures": ["Gemma3ForCausalLM"], "sliding_window": 4},
}
"""Of families that are read and written; of those in CONFIGS we compute what the published model
does."""


def _gated(p: str, hidden: int, ffn: int) -> Shapes:
    return {
        f"{p}gate_proj.weight": (ffn, hidden),
        f"{p}up_proj.weight": (ffn, hidden),
        f"{p}down_proj.weight": (hidden, ffn),
    }


def _grouped(c: Config, name: str, p: str, d: int) -> Shapes:
    n, m = c["num_attention_heads"], c["num_key_value_heads"]
    width = c.get("head_dim", d // n)
    sizes = {"q": n * width, "k": m * width, "v": m * width}
    found: Shapes = {f"{p}self_attn.o_proj.weight": (d, n * width)}
    if name.startswith("phi3"):
        return {**found, f"{p}self_attn.qkv_proj.weight": (sum(sizes.values()), d)}
    found |= {f"{p}self_attn.{one}_proj.weight": (size, d) for one, size in sizes.items()}
    if c.get("attention_bias") or name.startswith("qwen2"):
        found |= {f"{p}self_attn.{one}_proj.bias": (size,) for one, size in sizes.items()}
    if c.get("attention_bias"):
        found[f"{p}self_attn.o_proj.bias"] = (d,)
    if name.startswith("qwen3") or name == "gemma3":
        found |= {f"{p}self_attn.{one}_norm.weight": (width,) for one in "qk"}
    if name == "olmo2":
        found |= {f"{p}self_attn.{one}_norm.weight": (sizes[one],) for one in "qk"}
    return found


def _latent(c: Config, p: str, d: int) -> Shapes:
    n, nope, turned, value = (
        c["num_attention_heads"],
        c["qk_nope_head_dim"],
        c["qk_rope_head_dim"],
        c["v_head_dim"],
    )
    q, kv = c["q_lora_rank"], c["kv_lora_rank"]
    a = f"{p}self_attn."
    found: Shapes = {
        f"{a}kv_a_proj_with_mqa.weight": (kv + turned, d),
        f"{a}kv_a_layernorm.weight": (kv,),
        f"{a}kv_b_proj.weight": (n * (nope + value), kv),
        f"{a}o_proj.weight": (d, n * value),
    }
    if c.get("attention_bias"):
        found |= {f"{a}kv_a_proj_with_mqa.bias": (kv + turned,), f"{a}o_proj.bias": (d,)}
    if not q:
        return {**found, f"{a}q_proj.weight": (n * (nope + turned), d)}
    if c.get("attention_bias"):
        found[f"{a}q_a_proj.bias"] = (q,)
    return {
        **found,
        f"{a}q_a_proj.weight": (q, d),
        f"{a}q_a_layernorm.weight": (q,),
        f"{a}q_b_proj.weight": (n * (nope + turned), q),
    }


def _feed_forward(c: Config, name: str, p: str, layer: int, d: int) -> Shapes:
    f = c["intermediate_size"]
    if name.startswith("phi3"):
        return {f"{p}mlp.gate_up_proj.weight": (2 * f, d), f"{p}mlp.down_proj.weight": (d, f)}
    if name == "mixtral":
        e = f"{p}block_sparse_moe."
        sizes = {"w1": (f, d), "w2": (d, f), "w3": (f, d)}
        experts = {
            f"{e}experts.{i}.{one}.weight": s
            for i in range(c["num_local_experts"])
            for one, s in sizes.items()
        }
        return {f"{e}gate.weight": (c["num_local_experts"], d), **experts}
    count = c.get("num_experts") or c.get("n_routed_experts")
    dense = layer < c.get("first_k_dense_replace", 0) or (layer + 1) % c.get(
        "decoder_sparse_step", 1
    )
    if not count or dense:
        return _gated(f"{p}mlp.", d, f)
    inner = c["moe_intermediate_size"]
    found: Shapes = {f"{p}mlp.gate.weight": (count, d)}
    for i in range(count):
        found |= _gated(f"{p}mlp.experts.{i}.", d, inner)
    if name.startswith("qwen2 moe"):
        found |= _gated(f"{p}mlp.shared_expert.", d, c["shared_expert_intermediate_size"])
        found[f"{p}mlp.shared_expert_gate.weight"] = (1, d)
    if "n_shared_experts" in c:
        found |= _gated(f"{p}mlp.shared_experts.", d, inner * c["n_shared_experts"])
    if name.startswith("deepseek v3"):
        found[f"{p}mlp.gate.e_score_correction_bias"] = (count,)
    return found


def _layer(c: Config, name: str, layer: int) -> Shapes:
    d, p = c["hidden_size"], f"model.layers.{layer}."
    norms = ["input_layernorm", "post_attention_layernorm"]
    if name == "olmo2":
        norms = ["post_attention_layernorm", "post_feedforward_layernorm"]
    if name.startswith(("gemma2", "gemma3")):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    return {
        **{f"{p}{one}.weight": (d,) for one in norms},
        **(_latent(c, p, d) if "kv_lora_rank" in c else _grouped(c, name, p, d)),
        **_feed_forward(c, name, p, layer, d),
    }


def _biased(sizes: Mapping[str, tuple[int, ...]], *, turned: bool) -> Shapes:
    """Weight and bias of norms (one size) and projections (in, out)."""
    found: Shapes = {}
    for name, size in sizes.items():
        found[f"{name}.weight"] = size[::-1] if turned else size
        found[f"{name}.bias"] = (size[-1],)
    return found


def shapes(name: str) -> Shapes:
    """Every tensor of a checkpoint, as the family's class in Transformers names it."""
    c = LAYOUTS[name]
    v = c["vocab_size"]
    if name.startswith("gpt2"):
        d, t = c["n_embd"], "transformer."
        sizes = {f"{t}ln_f": (d,)}
        for i in range(c["n_layer"]):
            p = f"{t}h.{i}."
            sizes |= {
                f"{p}ln_1": (d,),
                f"{p}ln_2": (d,),
                f"{p}attn.c_attn": (d, 3 * d),
                f"{p}attn.c_proj": (d, d),
            }
            sizes |= {f"{p}mlp.c_fc": (d, 4 * d), f"{p}mlp.c_proj": (4 * d, d)}
        return {
            f"{t}wte.weight": (v, d),
            f"{t}wpe.weight": (c["n_positions"], d),
            **_biased(sizes, turned=False),
        }
    d = c["hidden_size"]
    if name == "bloom":
        t = "transformer."
        sizes = {f"{t}ln_f": (d,), f"{t}word_embeddings_layernorm": (d,)}
        for i in range(c["n_layer"]):
            p = f"{t}h.{i}."
            sizes |= {
                f"{p}input_layernorm": (d,),
                f"{p}post_attention_layernorm": (d,),
                f"{p}self_attention.query_key_value": (d, 3 * d),
            }
            sizes |= {
                f"{p}self_attention.dense": (d, d),
                f"{p}mlp.dense_h_to_4h": (d, 4 * d),
                f"{p}mlp.dense_4h_to_h": (4 * d, d),
            }
        return {f"{t}word_embeddings.weight": (v, d), **_biased(sizes, turned=True)}
    if name in ("mamba", "mamba2"):
        return _mamba_shapes(c, name, d, v)
    found: Shapes = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not c.get("tie_word_embeddings", name.startswith("gemma")):
        found["lm_head.weight"] = (v, d)
    layers = c["num_hidden_layers"]
    for layer in range(layers + c.get("num_nextn_predict_layers", 0)):
        found |= _layer(c, name, layer)
    if c.get("num_nextn_predict_layers"):
        p = f"model.layers.{layers}."
        found |= {
            f"{p}enorm.weight": (d,),
            f"{p}hnorm.weight": (d,),
            f"{p}eh_proj.weight": (d, 2 * d),
            f"{p}shared_head.norm.weight": (d,),
        }
    return found


def _mamba_shapes(c: Config, name: str, d: int, v: int) -> Shapes:
    found: Shapes = {"backbone.embeddings.weight": (v, d), "backbone.norm_f.weight": (d,)}
    taps = c["conv_kernel"]
    for layer in range(c["num_hidden_layers"]):
        found[f"backbone.layers.{layer}.norm.weight"] = (d,)
        p = f"backbone.layers.{layer}.mixer."
        if name == "mamba2":
            n = c["num_heads"]
            inner = n * c["head_dim"]
            mixed = inner + 2 * c["n_groups"] * c["state_size"]
            found |= {f"{p}in_proj.weight": (inner + mixed + n, d), f"{p}norm.weight": (inner,)}
            found |= {f"{p}{one}": (n,) for one in ("A_log", "D", "dt_bias")}
        else:
            inner, state, rank = c["intermediate_size"], c["state_size"], c["time_step_rank"]
            mixed = inner
            found |= {
                f"{p}in_proj.weight": (2 * inner, d),
                f"{p}x_proj.weight": (rank + 2 * state, inner),
            }
            found |= {f"{p}dt_proj.weight": (inner, rank), f"{p}dt_proj.bias": (inner,)}
            found |= {f"{p}A_log": (inner, state), f"{p}D": (inner,)}
        found |= {
            f"{p}conv1d.weight": (mixed, 1, taps),
            f"{p}conv1d.bias": (mixed,),
            f"{p}out_proj.weight": (d, inner),
        }
    if name == "mamba2":
        found["lm_head.weight"] = (v, d)
    return found


def checkpoint(
    name: str, folder: Path, *, files: int = 1, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    """Write a random checkpoint; its tensors."""
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for tensor, shape in shapes(name).items():
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        if "A_log" in tensor:
            drawn = drawn.abs()
        elif len(shape) == 1 and tensor.endswith("weight"):
            drawn = 1 + 0.1 * drawn
        elif len(shape) > 1 and "embed" not in tensor and "wte" not in tensor:
            drawn = drawn * shape[-1] ** -0.5
        tensors[tensor] = drawn.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LAYOUTS[name]))
    if files == 1:
        save_file(tensors, folder / "model.safetensors")
        return tensors
    named = {
        tensor: f"model-{i % files + 1:05d}-of-{files:05d}.safetensors"
        for i, tensor in enumerate(tensors)
    }
    for file in set(named.values()):
        save_file({t: v for t, v in tensors.items() if named[t] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": named})
    )
    return tensors
