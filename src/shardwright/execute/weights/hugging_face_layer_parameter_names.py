"""Hugging Face parameter names of decoder layers, by model family."""

from __future__ import annotations

from dataclasses import replace

from shardwright.execute.weights.naming_rules import (
    NamingRule,
    convolution_names,
    expert_names,
    fused_projection,
    in_either_order,
    in_rotary_pairs,
    linear_names,
    norm_names,
    renamed,
    same_tensor,
    shared_experts,
    side_by_side,
    stacked_expert_names,
)

OUTER = {
    **same_tensor(embed__weight="model.embed_tokens.weight"),
    **norm_names("norm", "model.norm"),
    **linear_names("logits", "lm_head"),
}
SELF = {
    **linear_names("qkv", "self_attn.q_proj"),
    **linear_names("qkv:1", "self_attn.k_proj"),
    **linear_names("qkv:2", "self_attn.v_proj"),
    **same_tensor(
        q_norm__weight="self_attn.q_norm.weight", k_norm__weight="self_attn.k_norm.weight"
    ),
    **linear_names("proj", "self_attn.o_proj"),
}
MLP = {
    **linear_names("up", "mlp.gate_proj"),
    **linear_names("up:1", "mlp.up_proj"),
    **linear_names("down", "mlp.down_proj"),
}
NORMS = {
    **norm_names("norm1", "input_layernorm"),
    **norm_names("norm2", "post_attention_layernorm"),
}
POST_NORMS = {
    **norm_names("post_norm1", "post_attention_layernorm"),
    **norm_names("post_norm2", "post_feedforward_layernorm"),
}
EXPERTS = expert_names(
    (
        "mlp.experts.{expert}.gate_proj",
        "mlp.experts.{expert}.up_proj",
        "mlp.experts.{expert}.down_proj",
    )
)
LLAMA = {**NORMS, **SELF, **MLP}
LATENT = {
    **NORMS,
    **MLP,
    **EXPERTS,
    **shared_experts("mlp.shared_experts"),
    **linear_names("router", "mlp.gate"),
    **same_tensor(router__correction="mlp.gate.e_score_correction_bias"),
    "q.weight": NamingRule(
        tensor="self_attn.q_proj.weight", turned=True, rotary="kv_down.weight.1"
    ),
    **linear_names("q_down", "self_attn.q_a_proj"),
    **norm_names("q_norm", "self_attn.q_a_layernorm"),
    "q_up.weight": NamingRule(
        tensor="self_attn.q_b_proj.weight", turned=True, rotary="kv_down.weight.1"
    ),
    **fused_projection("kv_down", "self_attn.kv_a_proj_with_mqa", parts=2),
    **norm_names("kv_norm", "self_attn.kv_a_layernorm"),
    **fused_projection("kv_up", "self_attn.kv_b_proj", parts=2, grouped=True),
    **linear_names("proj", "self_attn.o_proj"),
}
LATENT |= {
    f"kv_down.{k}.1": replace(LATENT[f"kv_down.{k}.1"], rotary="kv_down.weight.1")
    for k in ("weight", "bias")
}
PREDICTOR = {
    **norm_names("embed_norm", "enorm"),
    **norm_names("hidden_norm", "hnorm"),
    **linear_names("join", "eh_proj"),
    **norm_names("norm", "shared_head.norm"),
}
GPT2 = {
    **norm_names("norm1", "ln_1"),
    **norm_names("norm2", "ln_2"),
    **fused_projection("qkv", "attn.c_attn", parts=3, transposed=False),
    **fused_projection("proj", "attn.c_proj", parts=1, transposed=False),
    **fused_projection("up", "mlp.c_fc", parts=1, transposed=False),
    **fused_projection("down", "mlp.c_proj", parts=1, transposed=False),
}
BLOOM = {
    **NORMS,
    **fused_projection("qkv", "self_attention.query_key_value", parts=3, grouped=True),
    **linear_names("proj", "self_attention.dense"),
    **linear_names("up", "mlp.dense_h_to_4h"),
    **linear_names("down", "mlp.dense_4h_to_h"),
}
NEOX = renamed(BLOOM, "self_attention.", "attention.")
OPT = {
    **norm_names("norm1", "self_attn_layer_norm"),
    **norm_names("norm2", "final_layer_norm"),
    **SELF,
    **linear_names("proj", "self_attn.out_proj"),
    **linear_names("up", "fc1"),
    **linear_names("down", "fc2"),
}
UNGATED = {
    **NORMS,
    **SELF,
    **linear_names("up", "mlp.up_proj"),
    **linear_names("down", "mlp.down_proj"),
}
FUSED_GATE = {**LLAMA, **fused_projection("up", "mlp.gate_up_proj", parts=2)}
CODE = {
    **norm_names("norm1", "ln_1"),
    **norm_names("norm2", "ln_2"),
    **linear_names("proj", "attn.c_proj"),
    **linear_names("up", "mlp.c_fc"),
    **linear_names("down", "mlp.c_proj"),
}
GPTJ = {
    **norm_names("norm1", "ln_1"),
    **linear_names("qkv", "attn.q_proj"),
    **linear_names("qkv:1", "attn.k_proj"),
    **linear_names("qkv:2", "attn.v_proj"),
    **linear_names("proj", "attn.out_proj"),
    **linear_names("up", "mlp.fc_in"),
    **linear_names("down", "mlp.fc_out"),
}
PHI = {
    **norm_names("norm1", "input_layernorm"),
    **SELF,
    **linear_names("proj", "self_attn.dense"),
    **linear_names("up", "mlp.fc1"),
    **linear_names("down", "mlp.fc2"),
}
MIXER = {
    **norm_names("norm", "norm"),
    **same_tensor(
        scan__a_log="mixer.A_log",
        scan__d="mixer.D",
        scan__dt_bias="mixer.dt_bias",
        gate_norm__weight="mixer.norm.weight",
    ),
    **linear_names("out_proj", "mixer.out_proj"),
}
MAMBA_OUTER = {
    **same_tensor(embed__weight="backbone.embeddings.weight"),
    **norm_names("norm", "backbone.norm_f"),
    **linear_names("logits", "lm_head"),
}
MAMBA1 = {
    **MIXER,
    **fused_projection("in_proj", "mixer.in_proj", parts=2),
    **convolution_names(1),
    **fused_projection("x_proj", "mixer.x_proj", parts=3),
    **linear_names("dt_proj", "mixer.dt_proj"),
}


def t5_layer(last: int) -> dict[str, NamingRule]:
    """Rules of a T5 layer whose sublayer 0 is self-attention and sublayer `last` feed-forward.

    `last`: number of the feed-forward part in the layer.
    """
    attention, feed_forward = "layer.0.SelfAttention", f"layer.{last}.DenseReluDense"
    return {
        **norm_names("norm1", "layer.0.layer_norm"),
        **linear_names("qkv", f"{attention}.q"),
        **linear_names("qkv:1", f"{attention}.k"),
        **linear_names("qkv:2", f"{attention}.v"),
        **same_tensor(core__distances=f"{attention}.relative_attention_bias.weight"),
        **linear_names("proj", f"{attention}.o"),
        **norm_names("norm2", f"layer.{last}.layer_norm"),
        "up.weight": NamingRule(
            tensor=f"{feed_forward}.wi_0.weight", turned=True, alone=f"{feed_forward}.wi.weight"
        ),
        **linear_names("up:1", f"{feed_forward}.wi_1"),
        **linear_names("down", f"{feed_forward}.wo"),
    }


GEMMA2 = {**LLAMA, **POST_NORMS, **norm_names("norm2", "pre_feedforward_layernorm")}
GEMMA4 = {
    **GEMMA2,
    **linear_names("qk", "self_attn.q_proj"),
    **linear_names("qk:1", "self_attn.k_proj"),
    **same_tensor(
        residual2__weight="layer_scalar",
        router_norm__weight="router.scale",
        route__expert_scale="router.per_expert_scale",
    ),
    **linear_names("router", "router.proj"),
    **norm_names("mlp_norm", "post_feedforward_layernorm_1"),
    **norm_names("expert_norm", "pre_feedforward_layernorm_2"),
    **norm_names("moe_norm", "post_feedforward_layernorm_2"),
    **side_by_side("experts.up.weight", "experts.gate_up_proj", transposed=True),
    "experts.down.weight": NamingRule(tensor="experts.down_proj", turned=True),
}
GEMMA4_TOWER = {
    name: replace(rule, tensor=rule.tensor.replace("_proj.", "_proj.linear."))
    for name, rule in GEMMA2.items()
    if "bias" not in name
}
GEMMA4_PROJECTOR = {
    **same_tensor(pool__shift="vision_tower.std_bias", pool__scale="vision_tower.std_scale"),
    **linear_names("out", "embed_vision.embedding_projection"),
}
CLIP = {
    **norm_names("norm1", "layer_norm1"),
    **norm_names("norm2", "layer_norm2"),
    **SELF,
    **linear_names("proj", "self_attn.out_proj"),
    **linear_names("up", "mlp.fc1"),
    **linear_names("down", "mlp.fc2"),
}
CLIP_EMBED = {
    "patch.weight": NamingRule(
        tensor="embeddings.patch_embedding.weight", turned=True, folded=True
    ),
    **same_tensor(
        patch__class="embeddings.class_embedding",
        patch__positions="embeddings.position_embedding.weight",
    ),
    **norm_names("norm", "pre_layrnorm"),
}
MOON = {
    **norm_names("norm1", "norm0"),
    **norm_names("norm2", "norm1"),
    **in_rotary_pairs(fused_projection("qkv", "wqkv", parts=3)),
    **linear_names("proj", "wo"),
    **linear_names("up", "mlp.fc0"),
    **linear_names("down", "mlp.fc1"),
}
MOON_EMBED = {
    "patch.weight": NamingRule(tensor="proj.weight", turned=True, folded=True),
    **same_tensor(patch__bias="proj.bias"),
    "patch.positions": NamingRule(tensor="pos_emb.weight", gridded=True),
}
QWEN_VISION = {
    **norm_names("norm1", "norm1"),
    **norm_names("norm2", "norm2"),
    **fused_projection("qkv", "attn.qkv", parts=3),
    **linear_names("proj", "attn.proj"),
    **linear_names("up", "mlp.linear_fc1"),
    **linear_names("down", "mlp.linear_fc2"),
}
QWEN_EMBED = {
    "patch.weight": NamingRule(tensor="patch_embed.proj.weight", turned=True, folded=True),
    **same_tensor(patch__bias="patch_embed.proj.bias", patch__positions="pos_embed.weight"),
}
QWEN_MERGER = {
    **norm_names("norm", "norm"),
    **linear_names("up", "linear_fc1"),
    **linear_names("down", "linear_fc2"),
}
QWEN_EXPERTS = in_either_order(
    {
        **side_by_side("experts.up.weight", "mlp.experts.gate_up_proj"),
        **same_tensor(experts__down__weight="mlp.experts.down_proj"),
    }
)
"""Naming rules of published Qwen experts; Transformers writes them (out, in)."""
M3 = {
    **NORMS,
    **SELF,
    **linear_names("index_q", "self_attn.index_q_proj"),
    **linear_names("index_k", "self_attn.index_k_proj"),
    **norm_names("index_q_norm", "self_attn.index_q_norm"),
    **norm_names("index_k_norm", "self_attn.index_k_norm"),
    **MLP,
    **expert_names(tuple(f"block_sparse_moe.experts.{{expert}}.w{i}" for i in (1, 3, 2))),  # type: ignore[arg-type]
    **shared_experts("block_sparse_moe.shared_experts"),
    **linear_names("router", "block_sparse_moe.gate"),
    **same_tensor(router__correction="block_sparse_moe.e_score_correction_bias"),
}
M3_ALONE = {
    **renamed(M3, "self_attn.index_", "self_attn.indexer."),
    **fused_projection("up", "mlp.gate_up_proj", parts=2),
    **stacked_expert_names("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    **fused_projection("shared.up", "mlp.shared_experts.gate_up_proj", parts=2),
    **linear_names("shared.down", "mlp.shared_experts.down_proj"),
    **linear_names("router", "mlp.gate"),
    **same_tensor(router__correction="mlp.gate.e_score_correction_bias"),
}
"""Naming rules of MiniMax-M3's language model as Transformers writes it alone."""
M3_PROJECTOR = {
    **linear_names("up", "multi_modal_projector.linear_1"),
    **linear_names("down", "multi_modal_projector.linear_2"),
    **linear_names("merge.up", "patch_merge_mlp.linear_1"),
    **linear_names("merge.down", "patch_merge_mlp.linear_2"),
}
T5_CROSS = {
    **norm_names("cross.norm", "layer.1.layer_norm"),
    **linear_names("cross.q", "layer.1.EncDecAttention.q"),
    **linear_names("cross.kv", "layer.1.EncDecAttention.k"),
    **linear_names("cross.kv:1", "layer.1.EncDecAttention.v"),
    **linear_names("cross.proj", "layer.1.EncDecAttention.o"),
}
T5_TABLE = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
"""Distance table of all layers of a T5 stack, where they share it."""
