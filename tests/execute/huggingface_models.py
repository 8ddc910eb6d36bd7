"""The models of Hugging Face families in plain torch, over tensors by their published names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from tests.execute.huggingface_layouts import CONFIGS, Config
from tests.execute.huggingface_turns import rope, rope_pairs, scaled

Tensors = Mapping[str, torch.Tensor]


def linear(w: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def rms(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    width: float = 0.0,
    cap: float = 0.0,
    window: int = 0,
) -> torch.Tensor:
    """Softmax(QK^T / sqrt(width)) V of the keys up to a query's own, of `window` of them; scores
    between -cap and cap."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    mask = torch.full((q.shape[2], q.shape[2]), -torch.inf, dtype=q.dtype).triu(1)
    if window:
        mask = mask + torch.full_like(mask, -torch.inf).tril(-window)
    scores = q @ k.transpose(-1, -2) / (width or q.shape[-1]) ** 0.5 + (0 if bias is None else bias)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    scores = scores + mask
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


CURVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda x: x / (1 + (-x).exp()),
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    **dict.fromkeys(
        ("gelu_new", "gelu_pytorch_tanh"),
        lambda x: x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    ),
    "quick_gelu": lambda x: x / (1 + (-1.702 * x).exp()),
    "relu": lambda x: x.clamp(min=0.0),
    "relu2": lambda x: x.clamp(min=0.0) ** 2,
}


def act(c: Config) -> Callable[[torch.Tensor], torch.Tensor]:
    """Of a feed-forward; Gemma's first files say ``gelu`` and mean its tanh form."""
    old = c["architectures"][0] == "GemmaForCausalLM" and c["hidden_act"] == "gelu"
    return CURVES["gelu_new" if old else c["hidden_act"]]


def gated(c: Config, w: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    return linear(
        w,
        f"{name}.down_proj",
        act(c)(linear(w, f"{name}.gate_proj", x)) * linear(w, f"{name}.up_proj", x),
    )


def mixture(
    scores: torch.Tensor,
    chosen: torch.Tensor,
    x: torch.Tensor,
    expert: Callable[[int, torch.Tensor], torch.Tensor],
    *,
    normed: bool = True,
    factor: float = 1.0,
) -> torch.Tensor:
    """Sum over chosen experts, whose scores are made to add up to one where `normed`, times
    `factor`."""
    picked = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    picked = factor * (picked / picked.sum(-1, keepdim=True) if normed else picked)
    return sum(picked[..., e : e + 1] * expert(e, x) for e in range(scores.shape[-1]))


def decoder(c: Config, w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the families around Llama, of DeepSeek's and Gemma's."""
    x, eps = w["model.embed_tokens.weight"][ids], c["rms_norm_eps"]
    architecture = c["architectures"][0]
    gemma = architecture.startswith("Gemma")
    if gemma:
        x = x * c["hidden_size"] ** 0.5
        w = {name: 1 + tensor if "norm" in name else tensor for name, tensor in w.items()}
    attention = latent if "kv_lora_rank" in c else grouped
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."

        def normed(name: str, value: torch.Tensor, p: str = p) -> torch.Tensor:
            return rms(value, w[f"{p}{name}.weight"], eps)

        if architecture == "Olmo2ForCausalLM":
            x = x + normed("post_attention_layernorm", attention(c, w, p, x))
            x = x + normed("post_feedforward_layernorm", feed_forward(c, w, p, x))
        elif architecture == "Gemma2ForCausalLM":
            window = 0 if layer % 2 else c["sliding_window"]
            y = grouped(c, w, p, normed("input_layernorm", x), window=window)
            x = x + normed("post_attention_layernorm", y)
            x = x + normed(
                "post_feedforward_layernorm",
                feed_forward(c, w, p, normed("pre_feedforward_layernorm", x)),
            )
        else:
            x = x + attention(c, w, p, normed("input_layernorm", x))
            x = x + feed_forward(c, w, p, normed("post_attention_layernorm", x))
    x = rms(x, w["model.norm.weight"], eps)
    return (
        x
        @ w[
            "model.embed_tokens.weight" if c.get("tie_word_embeddings", gemma) else "lm_head.weight"
        ].T
    )


def grouped(c: Config, w: Tensors, p: str, x: torch.Tensor, *, window: int = 0) -> torch.Tensor:
    n, m, eps = c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"]
    width = c.get("query_pre_attn_scalar", 0.0)
    if f"{p}self_attn.qkv_proj.weight" in w:
        each = c["hidden_size"] // n
        q, k, v = linear(w, f"{p}self_attn.qkv_proj", x).split(
            [n * each, m * each, m * each], dim=-1
        )
    else:
        q, k, v = (linear(w, f"{p}self_attn.{one}_proj", x) for one in "qkv")
    gains = [w.get(f"{p}self_attn.{one}_norm.weight") for one in "qk"]
    if gains[0] is not None and len(gains[0]) == q.shape[-1]:
        q, k = (rms(t, g, eps) for t, g in zip((q, k), gains, strict=True))
    q, k, v = heads(q, n), heads(k, m), heads(v, m)
    if gains[0] is not None and len(gains[0]) == q.shape[-1]:
        q, k = (rms(t, g, eps) for t, g in zip((q, k), gains, strict=True))
    cap = c.get("attn_logit_softcapping") or 0.0
    y = attend(rope(q, c), rope(k, c), v, width=width, cap=cap, window=window)
    return linear(w, f"{p}self_attn.o_proj", y)


def latent(c: Config, w: Tensors, p: str, x: torch.Tensor) -> torch.Tensor:
    n, nope, turned, eps = (
        c["num_attention_heads"],
        c["qk_nope_head_dim"],
        c["qk_rope_head_dim"],
        c["rms_norm_eps"],
    )
    a = f"{p}self_attn."
    if c["q_lora_rank"]:
        q = linear(
            w, f"{a}q_b_proj", rms(linear(w, f"{a}q_a_proj", x), w[f"{a}q_a_layernorm.weight"], eps)
        )
    else:
        q = linear(w, f"{a}q_proj", x)
    q_nope, q_rope = heads(q, n).split([nope, turned], dim=-1)
    low, k_rope = linear(w, f"{a}kv_a_proj_with_mqa", x).split([c["kv_lora_rank"], turned], dim=-1)
    k_nope, v = heads(
        linear(w, f"{a}kv_b_proj", rms(low, w[f"{a}kv_a_layernorm.weight"], eps)), n
    ).split([nope, c["v_head_dim"]], dim=-1)
    turn = rope_pairs if c.get("rope_interleave", True) else rope
    k_rope = turn(k_rope.unsqueeze(1), c).expand(-1, n, -1, -1)
    q = torch.cat((q_nope, turn(q_rope, c)), dim=-1) * scaled(c, "mscale_all_dim") ** 2
    return linear(w, f"{a}o_proj", attend(q, torch.cat((k_nope, k_rope), dim=-1), v))


def feed_forward(c: Config, w: Tensors, p: str, x: torch.Tensor) -> torch.Tensor:
    topk = c.get("num_experts_per_tok", 0)
    if f"{p}block_sparse_moe.gate.weight" in w:
        e = f"{p}block_sparse_moe."
        scores = linear(w, f"{e}gate", x).softmax(-1)

        def expert(i: int, x: torch.Tensor) -> torch.Tensor:
            one = f"{e}experts.{i}."
            return linear(
                w, f"{one}w2", functional.silu(linear(w, f"{one}w1", x)) * linear(w, f"{one}w3", x)
            )

        return mixture(scores, scores.topk(topk).indices, x, expert)
    if f"{p}mlp.gate.weight" in w:
        logits = linear(w, f"{p}mlp.gate", x)
        correction = w.get(f"{p}mlp.gate.e_score_correction_bias")
        scores = logits.softmax(-1) if correction is None else logits.sigmoid()
        ranked = scores if correction is None else scores + correction
        if c.get("n_group", 1) > c.get("topk_group", 1):
            # Groups of equal size: by their best score (V2), or by the sum of their two best
            # corrected ones (V3).
            groups = ranked.unflatten(-1, (c["n_group"], -1))
            worth = groups.amax(-1) if correction is None else groups.topk(2).values.sum(-1)
            kept = torch.zeros_like(worth).scatter(-1, worth.topk(c["topk_group"]).indices, 1.0)
            ranked = (groups * kept.unsqueeze(-1) - (1 - kept.unsqueeze(-1))).flatten(-2)
        normed = c["norm_topk_prob"]
        factor = c.get("routed_scaling_factor", 1.0)
        y = mixture(
            scores,
            ranked.topk(topk).indices,
            x,
            lambda i, x: gated(c, w, f"{p}mlp.experts.{i}", x),
            normed=normed,
            factor=factor,
        )
        if f"{p}mlp.shared_experts.up_proj.weight" in w:
            y = y + gated(c, w, f"{p}mlp.shared_experts", x)
        if f"{p}mlp.shared_expert.up_proj.weight" in w:
            y = y + linear(w, f"{p}mlp.shared_expert_gate", x).sigmoid() * gated(
                c, w, f"{p}mlp.shared_expert", x
            )
        return y
    if f"{p}mlp.gate_up_proj.weight" in w:
        gate, up = linear(w, f"{p}mlp.gate_up_proj", x).chunk(2, dim=-1)
        return linear(
            w,
            f"{p}mlp.down_proj",
            act(c)(gate) * up,
        )
    return gated(c, w, f"{p}mlp", x)


def layer_norm(w: Tensors, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def gpt2(c: Config, w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    eps, n = c["layer_norm_epsilon"], c["n_head"]

    def conv1d(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: ids.shape[1]]
    for layer in range(c["n_layer"]):
        p = f"transformer.h.{layer}."
        q, k, v = (
            heads(t, n)
            for t in conv1d(f"{p}attn.c_attn", layer_norm(w, f"{p}ln_1", x, eps)).chunk(3, dim=-1)
        )
        x = x + conv1d(f"{p}attn.c_proj", attend(q, k, v))
        x = x + conv1d(
            f"{p}mlp.c_proj",
            CURVES[c["activation_function"]](
                conv1d(f"{p}mlp.c_fc", layer_norm(w, f"{p}ln_2", x, eps))
            ),
        )
    return layer_norm(w, "transformer.ln_f", x, eps) @ w["transformer.wte.weight"].T


def bloom(c: Config, w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    eps, n = c["layer_norm_epsilon"], c["n_head"]
    x = layer_norm(
        w,
        "transformer.word_embeddings_layernorm",
        w["transformer.word_embeddings.weight"][ids],
        eps,
    )
    # A bias that grows with the key's position: only differences between keys of one query count.
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / n) for h in range(n)], dtype=x.dtype)
    alibi = slopes[:, None, None] * torch.arange(ids.shape[1], dtype=x.dtype)
    for layer in range(c["n_layer"]):
        p = f"transformer.h.{layer}."
        fused = linear(
            w, f"{p}self_attention.query_key_value", layer_norm(w, f"{p}input_layernorm", x, eps)
        )
        q, k, v = fused.reshape(*ids.shape, n, 3, -1).permute(3, 0, 2, 1, 4)
        x = x + linear(w, f"{p}self_attention.dense", attend(q, k, v, alibi))
        inner = functional.gelu(
            linear(
                w, f"{p}mlp.dense_h_to_4h", layer_norm(w, f"{p}post_attention_layernorm", x, eps)
            ),
            approximate="tanh",
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
    y = functional.conv1d(
        x.transpose(1, 2),
        taps,
        w[f"{p}conv1d.bias"],
        padding=taps.shape[-1] - 1,
        groups=taps.shape[0],
    )
    return functional.silu(y[..., : x.shape[1]].transpose(1, 2))


def mamba2_mixer(c: Config, w: Tensors, p: str, x: torch.Tensor) -> torch.Tensor:
    n, width, state, groups = c["num_heads"], c["head_dim"], c["state_size"], c["n_groups"]
    inner = n * width
    gate, mixed, dt = linear(w, f"{p}in_proj", x).split(
        [inner, inner + 2 * groups * state, n], dim=-1
    )
    u, b, c_ = convolved(w, p, mixed).split([inner, groups * state, groups * state], dim=-1)
    u = u.reshape(*u.shape[:2], n, width)
    b, c_ = (
        t.reshape(*t.shape[:2], groups, state).repeat_interleave(n // groups, dim=2)
        for t in (b, c_)
    )
    dt, a = functional.softplus(dt + w[f"{p}dt_bias"]), -w[f"{p}A_log"].exp()
    h, rows = torch.zeros(x.shape[0], n, width, state, dtype=x.dtype), []
    for t in range(x.shape[1]):
        h = (dt[:, t] * a).exp()[..., None, None] * h + (dt[:, t, :, None] * u[:, t])[
            ..., None
        ] * b[:, t, :, None, :]
        rows.append((h @ c_[:, t, :, :, None])[..., 0] + w[f"{p}D"][:, None] * u[:, t])
    y = torch.stack(rows, dim=1).flatten(2)
    gated = (y * functional.silu(gate)).unflatten(-1, (groups, -1))
    gain = w[f"{p}norm.weight"].unflatten(0, (groups, -1))
    return linear(w, f"{p}out_proj", rms(gated, gain, c["layer_norm_epsilon"]).flatten(-2))


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


LOGITS: dict[str, Callable[[Config, Tensors, torch.Tensor], torch.Tensor]] = {
    "gpt2": gpt2,
    "bloom": bloom,
    "mamba": mamba,
    "mamba2": mamba,
}


def loss(name: str, w: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Mean over all tokens but the first of what each is predicted with."""
    logits = LOGITS.get(name.split()[0], decoder)(CONFIGS[name], w, ids[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
