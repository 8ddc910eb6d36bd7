"""Small checkpoints in the layout of Transformers, written without our tables, and the models that read them in plain torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional

Config = dict[str, Any]
Tensors = Mapping[str, torch.Tensor]
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
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}
CONFIGS: dict[str, Config] = {
    "llama": {**BASE, "architectures": ["LlamaForCausalLM"]},
    "llama tied": {**BASE, "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True, "attention_bias": True},
    "qwen2": {**BASE, "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {**BASE, "architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "tie_word_embeddings": True},
    "olmo2": {**BASE, "architectures": ["Olmo2ForCausalLM"]},
    "phi3": {**BASE, "architectures": ["Phi3ForCausalLM"]},
    "mixtral": {**BASE, "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
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
    "deepseek v2": {**LATENT, "architectures": ["DeepseekV2ForCausalLM"], "q_lora_rank": None},
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
GEMMA: Config = {**BASE, "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4}
LAYOUTS: dict[str, Config] = {
    **CONFIGS,
    "deepseek v3 mtp": {**CONFIGS["deepseek v3"], "num_nextn_predict_layers": 1},
    "gemma": {**GEMMA, "architectures": ["GemmaForCausalLM"]},
    "gemma2": {**GEMMA, "architectures": ["Gemma2ForCausalLM"]},
    "gemma3": {**GEMMA, "architectures": ["Gemma3ForCausalLM"]},
}
"""Of families that are read and written; of those in CONFIGS we compute what the published model does."""


def linear(w: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def rms(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rope(x: torch.Tensor, base: float) -> torch.Tensor:
    """(batch, heads, tokens, width), as Llama's class in Transformers turns it."""
    width = x.shape[-1]
    rates = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), rates)
    emb = torch.cat((angles, angles), dim=-1)
    return x * emb.cos() + rotate_half(x) * emb.sin()


def rope_pairs(x: torch.Tensor, base: float) -> torch.Tensor:
    """As DeepSeek's own code turns it: (even, odd) elements are complex numbers."""
    width = x.shape[-1]
    rates = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), rates)
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(z).flatten(-2)


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    mask = torch.full((q.shape[2], q.shape[2]), -torch.inf, dtype=q.dtype).triu(1)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask + (0 if bias is None else bias)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def gated(w: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    return linear(w, f"{name}.down_proj", functional.silu(linear(w, f"{name}.gate_proj", x)) * linear(w, f"{name}.up_proj", x))


def mixture(
    scores: torch.Tensor, chosen: torch.Tensor, x: torch.Tensor, expert: Callable[[int, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Sum over chosen experts, whose scores are made to add up to one."""
    picked = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    picked = picked / picked.sum(-1, keepdim=True)
    return sum(picked[..., e : e + 1] * expert(e, x) for e in range(scores.shape[-1]))


def decoder(c: Config, w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the families around Llama, and of DeepSeek's."""
    x, eps = w["model.embed_tokens.weight"][ids], c["rms_norm_eps"]
    architecture = c["architectures"][0]
    attention = latent if "kv_lora_rank" in c else grouped
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."

        def normed(name: str, value: torch.Tensor, p: str = p) -> torch.Tensor:
            return rms(value, w[f"{p}{name}.weight"], eps)

        if architecture == "Olmo2ForCausalLM":
            x = x + normed("post_attention_layernorm", attention(c, w, p, x))
            x = x + normed("post_feedforward_layernorm", feed_forward(c, w, p, x))
        else:
            x = x + attention(c, w, p, normed("input_layernorm", x))
            x = x + feed_forward(c, w, p, normed("post_attention_layernorm", x))
    x = rms(x, w["model.norm.weight"], eps)
    return x @ w["model.embed_tokens.weight" if c.get("tie_word_embeddings") else "lm_head.weight"].T


def grouped(c: Config, w: Tensors, p: str, x: torch.Tensor) -> torch.Tensor:
    n, m, eps = c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"]
    if f"{p}self_attn.qkv_proj.weight" in w:
        width = c["hidden_size"] // n
        q, k, v = linear(w, f"{p}self_attn.qkv_proj", x).split([n * width, m * width, m * width], dim=-1)
    else:
        q, k, v = (linear(w, f"{p}self_attn.{one}_proj", x) for one in "qkv")
    gains = [w.get(f"{p}self_attn.{one}_norm.weight") for one in "qk"]
    if gains[0] is not None and len(gains[0]) == q.shape[-1]:
        q, k = (rms(t, g, eps) for t, g in zip((q, k), gains, strict=True))
    q, k, v = heads(q, n), heads(k, m), heads(v, m)
    if gains[0] is not None and len(gains[0]) == q.shape[-1]:
        q, k = (rms(t, g, eps) for t, g in zip((q, k), gains, strict=True))
    return linear(w, f"{p}self_attn.o_proj", attend(rope(q, c["rope_theta"]), rope(k, c["rope_theta"]), v))


def latent(c: Config, w: Tensors, p: str, x: torch.Tensor) -> torch.Tensor:
    n, nope, turned, eps = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["rms_norm_eps"]
    a = f"{p}self_attn."
    if c["q_lora_rank"]:
        q = linear(w, f"{a}q_b_proj", rms(linear(w, f"{a}q_a_proj", x), w[f"{a}q_a_layernorm.weight"], eps))
    else:
        q = linear(w, f"{a}q_proj", x)
    q_nope, q_rope = heads(q, n).split([nope, turned], dim=-1)
    low, k_rope = linear(w, f"{a}kv_a_proj_with_mqa", x).split([c["kv_lora_rank"], turned], dim=-1)
    k_nope, v = heads(linear(w, f"{a}kv_b_proj", rms(low, w[f"{a}kv_a_layernorm.weight"], eps)), n).split([nope, c["v_head_dim"]], dim=-1)
    k_rope = rope_pairs(k_rope.unsqueeze(1), c["rope_theta"]).expand(-1, n, -1, -1)
    q = torch.cat((q_nope, rope_pairs(q_rope, c["rope_theta"])), dim=-1)
    return linear(w, f"{a}o_proj", attend(q, torch.cat((k_nope, k_rope), dim=-1), v))


def feed_forward(c: Config, w: Tensors, p: str, x: torch.Tensor) -> torch.Tensor:
    topk = c.get("num_experts_per_tok", 0)
    if f"{p}block_sparse_moe.gate.weight" in w:
        e = f"{p}block_sparse_moe."
        scores = linear(w, f"{e}gate", x).softmax(-1)

        def expert(i: int, x: torch.Tensor) -> torch.Tensor:
            one = f"{e}experts.{i}."
            return linear(w, f"{one}w2", functional.silu(linear(w, f"{one}w1", x)) * linear(w, f"{one}w3", x))

        return mixture(scores, scores.topk(topk).indices, x, expert)
    if f"{p}mlp.gate.weight" in w:
        logits = linear(w, f"{p}mlp.gate", x)
        correction = w.get(f"{p}mlp.gate.e_score_correction_bias")
        scores = logits.softmax(-1) if correction is None else logits.sigmoid()
        chosen = (scores if correction is None else scores + correction).topk(topk).indices
        y = mixture(scores, chosen, x, lambda i, x: gated(w, f"{p}mlp.experts.{i}", x))
        if f"{p}mlp.shared_experts.up_proj.weight" in w:
            y = y + gated(w, f"{p}mlp.shared_experts", x)
        if f"{p}mlp.shared_expert.up_proj.weight" in w:
            y = y + linear(w, f"{p}mlp.shared_expert_gate", x).sigmoid() * gated(w, f"{p}mlp.shared_expert", x)
        return y
    if f"{p}mlp.gate_up_proj.weight" in w:
        gate, up = linear(w, f"{p}mlp.gate_up_proj", x).chunk(2, dim=-1)
        return linear(w, f"{p}mlp.down_proj", functional.silu(gate) * up)
    return gated(w, f"{p}mlp", x)


def layer_norm(w: Tensors, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def gpt2(c: Config, w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    eps, n = c["layer_norm_epsilon"], c["n_head"]

    def conv1d(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: ids.shape[1]]
    for layer in range(c["n_layer"]):
        p = f"transformer.h.{layer}."
        q, k, v = (heads(t, n) for t in conv1d(f"{p}attn.c_attn", layer_norm(w, f"{p}ln_1", x, eps)).chunk(3, dim=-1))
        x = x + conv1d(f"{p}attn.c_proj", attend(q, k, v))
        x = x + conv1d(f"{p}mlp.c_proj", functional.gelu(conv1d(f"{p}mlp.c_fc", layer_norm(w, f"{p}ln_2", x, eps)), approximate="tanh"))
    return layer_norm(w, "transformer.ln_f", x, eps) @ w["transformer.wte.weight"].T


def bloom(c: Config, w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    eps, n = c["layer_norm_epsilon"], c["n_head"]
    x = layer_norm(w, "transformer.word_embeddings_layernorm", w["transformer.word_embeddings.weight"][ids], eps)
    # A bias that grows with the key's position: only differences between keys of one query count.
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / n) for h in range(n)], dtype=x.dtype)
    alibi = slopes[:, None, None] * torch.arange(ids.shape[1], dtype=x.dtype)
    for layer in range(c["n_layer"]):
        p = f"transformer.h.{layer}."
        fused = linear(w, f"{p}self_attention.query_key_value", layer_norm(w, f"{p}input_layernorm", x, eps))
        q, k, v = fused.reshape(*ids.shape, n, 3, -1).permute(3, 0, 2, 1, 4)
        x = x + linear(w, f"{p}self_attention.dense", attend(q, k, v, alibi))
        inner = functional.gelu(
            linear(w, f"{p}mlp.dense_h_to_4h", layer_norm(w, f"{p}post_attention_layernorm", x, eps)), approximate="tanh"
        )
        x = x + linear(w, f"{p}mlp.dense_4h_to_h", inner)
    return layer_norm(w, "transformer.ln_f", x, eps) @ w["transformer.word_embeddings.weight"].T


def mamba(c: Config, w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    eps = c["layer_norm_epsilon"]
    mixer = mamba2_mixer if c["architectures"][0] == "Mamba2ForCausalLM" else mamba1_mixer
    x = w["backbone.embeddings.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        p = f"backbone.layers.{layer}."
        x = x + mixer(c, w, f"{p}mixer.", rms(x, w[f"{p}norm.weight"], eps))
    x = rms(x, w["backbone.norm_f.weight"], eps)
    return x @ w.get("lm_head.weight", w["backbone.embeddings.weight"]).T


def convolved(w: Tensors, p: str, x: torch.Tensor) -> torch.Tensor:
    taps = w[f"{p}conv1d.weight"]
    y = functional.conv1d(x.transpose(1, 2), taps, w[f"{p}conv1d.bias"], padding=taps.shape[-1] - 1, groups=taps.shape[0])
    return functional.silu(y[..., : x.shape[1]].transpose(1, 2))


def mamba2_mixer(c: Config, w: Tensors, p: str, x: torch.Tensor) -> torch.Tensor:
    n, width, state, groups = c["num_heads"], c["head_dim"], c["state_size"], c["n_groups"]
    inner = n * width
    gate, mixed, dt = linear(w, f"{p}in_proj", x).split([inner, inner + 2 * groups * state, n], dim=-1)
    u, b, c_ = convolved(w, p, mixed).split([inner, groups * state, groups * state], dim=-1)
    u = u.reshape(*u.shape[:2], n, width)
    b, c_ = (t.reshape(*t.shape[:2], groups, state).repeat_interleave(n // groups, dim=2) for t in (b, c_))
    dt, a = functional.softplus(dt + w[f"{p}dt_bias"]), -w[f"{p}A_log"].exp()
    h, rows = torch.zeros(x.shape[0], n, width, state, dtype=x.dtype), []
    for t in range(x.shape[1]):
        h = (dt[:, t] * a).exp()[..., None, None] * h + (dt[:, t, :, None] * u[:, t])[..., None] * b[:, t, :, None, :]
        rows.append((h @ c_[:, t, :, :, None])[..., 0] + w[f"{p}D"][:, None] * u[:, t])
    y = torch.stack(rows, dim=1).flatten(2)
    return linear(w, f"{p}out_proj", rms(y * functional.silu(gate), w[f"{p}norm.weight"], c["layer_norm_epsilon"]))


def mamba1_mixer(c: Config, w: Tensors, p: str, x: torch.Tensor) -> torch.Tensor:
    state, rank = c["state_size"], c["time_step_rank"]
    u, gate = linear(w, f"{p}in_proj", x).chunk(2, dim=-1)
    u = convolved(w, p, u)
    low, b, c_ = linear(w, f"{p}x_proj", u).split([rank, state, state], dim=-1)
    dt, a = functional.softplus(linear(w, f"{p}dt_proj", low)), -w[f"{p}A_log"].exp()
    h, rows = torch.zeros(x.shape[0], u.shape[-1], state, dtype=x.dtype), []
    for t in range(x.shape[1]):
        h = (dt[:, t, :, None] * a).exp() * h + (dt[:, t] * u[:, t])[..., None] * b[:, t, None]
        rows.append((h * c_[:, t, None]).sum(-1) + w[f"{p}D"] * u[:, t])
    return linear(w, f"{p}out_proj", torch.stack(rows, dim=1) * functional.silu(gate))


LOGITS: dict[str, Callable[[Config, Tensors, torch.Tensor], torch.Tensor]] = {"gpt2": gpt2, "bloom": bloom, "mamba": mamba, "mamba2": mamba}


def loss(name: str, w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Mean over all tokens but the first of what each is predicted with."""
    logits = LOGITS.get(name, decoder)(CONFIGS[name], w, ids[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def _gated(p: str, hidden: int, ffn: int) -> Shapes:
    return {f"{p}gate_proj.weight": (ffn, hidden), f"{p}up_proj.weight": (ffn, hidden), f"{p}down_proj.weight": (hidden, ffn)}


def _grouped(c: Config, name: str, p: str, d: int) -> Shapes:
    n, m = c["num_attention_heads"], c["num_key_value_heads"]
    width = c.get("head_dim", d // n)
    sizes = {"q": n * width, "k": m * width, "v": m * width}
    found: Shapes = {f"{p}self_attn.o_proj.weight": (d, n * width)}
    if name == "phi3":
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
    n, nope, turned, value = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
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
    if name == "phi3":
        return {f"{p}mlp.gate_up_proj.weight": (2 * f, d), f"{p}mlp.down_proj.weight": (d, f)}
    if name == "mixtral":
        e = f"{p}block_sparse_moe."
        sizes = {"w1": (f, d), "w2": (d, f), "w3": (f, d)}
        experts = {f"{e}experts.{i}.{one}.weight": s for i in range(c["num_local_experts"]) for one, s in sizes.items()}
        return {f"{e}gate.weight": (c["num_local_experts"], d), **experts}
    count = c.get("num_experts") or c.get("n_routed_experts")
    dense = layer < c.get("first_k_dense_replace", 0) or (layer + 1) % c.get("decoder_sparse_step", 1)
    if not count or dense:
        return _gated(f"{p}mlp.", d, f)
    inner = c["moe_intermediate_size"]
    found: Shapes = {f"{p}mlp.gate.weight": (count, d)}
    for i in range(count):
        found |= _gated(f"{p}mlp.experts.{i}.", d, inner)
    if name == "qwen2 moe":
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
    if name in ("gemma2", "gemma3"):
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
    if name == "gpt2":
        d, t = c["n_embd"], "transformer."
        sizes = {f"{t}ln_f": (d,)}
        for i in range(c["n_layer"]):
            p = f"{t}h.{i}."
            sizes |= {f"{p}ln_1": (d,), f"{p}ln_2": (d,), f"{p}attn.c_attn": (d, 3 * d), f"{p}attn.c_proj": (d, d)}
            sizes |= {f"{p}mlp.c_fc": (d, 4 * d), f"{p}mlp.c_proj": (4 * d, d)}
        return {f"{t}wte.weight": (v, d), f"{t}wpe.weight": (c["n_positions"], d), **_biased(sizes, turned=False)}
    d = c["hidden_size"]
    if name == "bloom":
        t = "transformer."
        sizes = {f"{t}ln_f": (d,), f"{t}word_embeddings_layernorm": (d,)}
        for i in range(c["n_layer"]):
            p = f"{t}h.{i}."
            sizes |= {f"{p}input_layernorm": (d,), f"{p}post_attention_layernorm": (d,), f"{p}self_attention.query_key_value": (d, 3 * d)}
            sizes |= {f"{p}self_attention.dense": (d, d), f"{p}mlp.dense_h_to_4h": (d, 4 * d), f"{p}mlp.dense_4h_to_h": (4 * d, d)}
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
        found |= {f"{p}enorm.weight": (d,), f"{p}hnorm.weight": (d,), f"{p}eh_proj.weight": (d, 2 * d), f"{p}shared_head.norm.weight": (d,)}
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
            found |= {f"{p}in_proj.weight": (2 * inner, d), f"{p}x_proj.weight": (rank + 2 * state, inner)}
            found |= {f"{p}dt_proj.weight": (inner, rank), f"{p}dt_proj.bias": (inner,)}
            found |= {f"{p}A_log": (inner, state), f"{p}D": (inner,)}
        found |= {f"{p}conv1d.weight": (mixed, 1, taps), f"{p}conv1d.bias": (mixed,), f"{p}out_proj.weight": (d, inner)}
    if name == "mamba2":
        found["lm_head.weight"] = (v, d)
    return found


def checkpoint(name: str, folder: Path, *, files: int = 1, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
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
    named = {tensor: f"model-{i % files + 1:05d}-of-{files:05d}.safetensors" for i, tensor in enumerate(tensors)}
    for file in set(named.values()):
        save_file({t: v for t, v in tensors.items() if named[t] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": named}))
    return tensors
