"""Names of the parameters of layers, by generation of models."""

from __future__ import annotations

from dataclasses import replace

from shardwright.execute.weights.naming_rules import (
    Rule,
    convolved,
    experts_of,
    fused,
    in_either_order,
    in_rotary_pairs,
    linear,
    norm,
    of_all_experts,
    renamed,
    same_tensor,
    shared_experts,
    side_by_side,
)

OUTER = {
    **same_tensor(embed__weight="model.embed_tokens.weight"),
    **norm("norm", "model.norm"),
    **linear("logits", "lm_head"),
}
SELF = {
    **linear("qkv", "self_attn.q_proj"),
    **linear("qkv:1", "self_attn.k_proj"),
    **linear("qkv:2", "self_attn.v_proj"),
    **same_tensor(
        q_norm__weight="self_attn.q_norm.weight", k_norm__weight="self_attn.k_norm.weight"
    ),
    **linear("proj", "self_attn.o_proj"),
}
MLP = {
    **linear("up", "mlp.gate_proj"),
    **linear("up:1", "mlp.up_proj"),
    **linear("down", "mlp.down_proj"),
}
NORMS = {**norm("norm1", "input_layernorm"), **norm("norm2", "post_attention_layernorm")}
POST_NORMS = {
    **norm("post_norm1", "post_attention_layernorm"),
    **norm("post_norm2", "post_feedforward_layernorm"),
}
EXPERTS = experts_of(
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
    **linear("router", "mlp.gate"),
    **same_tensor(router__correction="mlp.gate.e_score_correction_bias"),
    "q.weight": Rule(tensor="self_attn.q_proj.weight", turned=True, rotary="kv_down.weight.1"),
    **linear("q_down", "self_attn.q_a_proj"),
    **norm("q_norm", "self_attn.q_a_layernorm"),
    "q_up.weight": Rule(tensor="self_attn.q_b_proj.weight", turned=True, rotary="kv_down.weight.1"),
    **fused("kv_down", "self_attn.kv_a_proj_with_mqa", parts=2),
    **norm("kv_norm", "self_attn.kv_a_layernorm"),
    **fused("kv_up", "self_attn.kv_b_proj", parts=2, grouped=True),
    **linear("proj", "self_attn.o_proj"),
}
LATENT |= {
    f"kv_down.{k}.1": replace(LATENT[f"kv_down.{k}.1"], rotary="kv_down.weight.1")
    for k in ("weight", "bias")
}
PREDICTOR = {
    **norm("embed_norm", "enorm"),
    **norm("hidden_norm", "hnorm"),
    **linear("join", "eh_proj"),
    **norm("norm", "shared_head.norm"),
}
GPT2 = {
    **norm("norm1", "ln_1"),
    **norm("norm2", "ln_2"),
    **fused("qkv", "attn.c_attn", parts=3, turned=False),
    **fused("proj", "attn.c_proj", parts=1, turned=False),
    **fused("up", "mlp.c_fc", parts=1, turned=False),
    **fused("down", "mlp.c_proj", parts=1, turned=False),
}
BLOOM = {
    **NORMS,
    **fused("qkv", "self_attention.query_key_value", parts=3, grouped=True),
    **linear("proj", "self_attention.dense"),
    **linear("up", "mlp.dense_h_to_4h"),
    **linear("down", "mlp.dense_4h_to_h"),
}
NEOX = renamed(BLOOM, "self_attention.", "attention.")
OPT = {
    **norm("norm1", "self_attn_layer_norm"),
    **norm("norm2", "final_layer_norm"),
    **SELF,
    **linear("proj", "self_attn.out_proj"),
    **linear("up", "fc1"),
    **linear("down", "fc2"),
}
UNGATED = {**NORMS, **SELF, **linear("up", "mlp.up_proj"), **linear("down", "mlp.down_proj")}
FUSED_GATE = {**LLAMA, **fused("up", "mlp.gate_up_proj", parts=2)}
CODE = {
    **norm("norm1", "ln_1"),
    **norm("norm2", "ln_2"),
    **linear("proj", "attn.c_proj"),
    **linear("up", "mlp.c_fc"),
    **linear("down", "mlp.c_proj"),
}
GPTJ = {
    **norm("norm1", "ln_1"),
    **linear("qkv", "attn.q_proj"),
    **linear("qkv:1", "attn.k_proj"),
    **linear("qkv:2", "attn.v_proj"),
    **linear("proj", "attn.out_proj"),
    **linear("up", "mlp.fc_in"),
    **linear("down", "mlp.fc_out"),
}
PHI = {
    **norm("norm1", "input_layernorm"),
    **SELF,
    **linear("proj", "self_attn.dense"),
    **linear("up", "mlp.fc1"),
    **linear("down", "mlp.fc2"),
}
MIXER = {
    **norm("norm", "norm"),
    **same_tensor(
        scan__a_log="mixer.A_log",
        scan__d="mixer.D",
        scan__dt_bias="mixer.dt_bias",
        gate_norm__weight="mixer.norm.weight",
    ),
    **linear("out_proj", "mixer.out_proj"),
}
MAMBA_OUTER = {
    **same_tensor(embed__weight="backbone.embeddings.weight"),
    **norm("norm", "backbone.norm_f"),
    **linear("logits", "lm_head"),
}
MAMBA1 = {
    **MIXER,
    **fused("in_proj", "mixer.in_proj", parts=2),
    **convolved(1),
    **fused("x_proj", "mixer.x_proj", parts=3),
    **linear("dt_proj", "mixer.dt_proj"),
}


def t5_layer(last: int) -> dict[str, Rule]:
    """A layer of a T5's encoder, or of its decoder without what reads the encoder; `last`: number
    of the feed-forward's part.
    """
    own, feed = "layer.0.SelfAttention", f"layer.{last}.DenseReluDense"
    return {
        **norm("norm1", "layer.0.layer_norm"),
        **linear("qkv", f"{own}.q"),
        **linear("qkv:1", f"{own}.k"),
        **linear("qkv:2", f"{own}.v"),
        **same_tensor(core__distances=f"{own}.relative_attention_bias.weight"),
        **linear("proj", f"{own}.o"),
        **norm("norm2", f"layer.{last}.layer_norm"),
        "up.weight": Rule(tensor=f"{feed}.wi_0.weight", turned=True, alone=f"{feed}.wi.weight"),
        **linear("up:1", f"{feed}.wi_1"),
        **linear("down", f"{feed}.wo"),
    }


GEMMA2 = {**LLAMA, **POST_NORMS, **norm("norm2", "pre_feedforward_layernorm")}
GEMMA4 = {
    **GEMMA2,
    **linear("qk", "self_attn.q_proj"),
    **linear("qk:1", "self_attn.k_proj"),
    **same_tensor(
        residual2__weight="layer_scalar",
        router_norm__weight="router.scale",
        route__expert_scale="router.per_expert_scale",
    ),
    **linear("router", "router.proj"),
    **norm("mlp_norm", "post_feedforward_layernorm_1"),
    **norm("expert_norm", "pre_feedforward_layernorm_2"),
    **norm("moe_norm", "post_feedforward_layernorm_2"),
    **side_by_side("experts.up.weight", "experts.gate_up_proj", turned=True),
    "experts.down.weight": Rule(tensor="experts.down_proj", turned=True),
}
GEMMA4_TOWER = {
    name: replace(rule, tensor=rule.tensor.replace("_proj.", "_proj.linear."))
    for name, rule in GEMMA2.items()
    if "bias" not in name
}
GEMMA4_PROJECTOR = {
    **same_tensor(pool__shift="vision_tower.std_bias", pool__scale="vision_tower.std_scale"),
    **linear("out", "embed_vision.embedding_projection"),
}
CLIP = {
    **norm("norm1", "layer_norm1"),
    **norm("norm2", "layer_norm2"),
    **SELF,
    **linear("proj", "self_attn.out_proj"),
    **linear("up", "mlp.fc1"),
    **linear("down", "mlp.fc2"),
}
CLIP_EMBED = {
    "patch.weight": Rule(tensor="embeddings.patch_embedding.weight", turned=True, folded=True),
    **same_tensor(
        patch__class="embeddings.class_embedding",
        patch__positions="embeddings.position_embedding.weight",
    ),
    **norm("norm", "pre_layrnorm"),
}
MOON = {
    **norm("norm1", "norm0"),
    **norm("norm2", "norm1"),
    **in_rotary_pairs(fused("qkv", "wqkv", parts=3)),
    **linear("proj", "wo"),
    **linear("up", "mlp.fc0"),
    **linear("down", "mlp.fc1"),
}
MOON_EMBED = {
    "patch.weight": Rule(tensor="proj.weight", turned=True, folded=True),
    **same_tensor(patch__bias="proj.bias"),
    "patch.positions": Rule(tensor="pos_emb.weight", gridded=True),
}
QWEN_VISION = {
    **norm("norm1", "norm1"),
    **norm("norm2", "norm2"),
    **fused("qkv", "attn.qkv", parts=3),
    **linear("proj", "attn.proj"),
    **linear("up", "mlp.linear_fc1"),
    **linear("down", "mlp.linear_fc2"),
}
QWEN_EMBED = {
    "patch.weight": Rule(tensor="patch_embed.proj.weight", turned=True, folded=True),
    **same_tensor(patch__bias="patch_embed.proj.bias", patch__positions="pos_embed.weight"),
}
QWEN_MERGER = {**norm("norm", "norm"), **linear("up", "linear_fc1"), **linear("down", "linear_fc2")}
QWEN_EXPERTS = in_either_order(
    {
        **side_by_side("experts.up.weight", "mlp.experts.gate_up_proj"),
        **same_tensor(experts__down__weight="mlp.experts.down_proj"),
    }
)
"""As published ones are; Transformers writes them (out, in)."""
M3 = {
    **NORMS,
    **SELF,
    **linear("index_q", "self_attn.index_q_proj"),
    **linear("index_k", "self_attn.index_k_proj"),
    **norm("index_q_norm", "self_attn.index_q_norm"),
    **norm("index_k_norm", "self_attn.index_k_norm"),
    **MLP,
    **experts_of(tuple(f"block_sparse_moe.experts.{{expert}}.w{i}" for i in (1, 3, 2))),  # type: ignore[arg-type]
    **shared_experts("block_sparse_moe.shared_experts"),
    **linear("router", "block_sparse_moe.gate"),
    **same_tensor(router__correction="block_sparse_moe.e_score_correction_bias"),
}
M3_ALONE = {
    **renamed(M3, "self_attn.index_", "self_attn.indexer."),
    **fused("up", "mlp.gate_up_proj", parts=2),
    **of_all_experts("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    **fused("shared.up", "mlp.shared_experts.gate_up_proj", parts=2),
    **linear("shared.down", "mlp.shared_experts.down_proj"),
    **linear("router", "mlp.gate"),
    **same_tensor(router__correction="mlp.gate.e_score_correction_bias"),
}
"""As Transformers writes the language model alone."""
M3_PROJECTOR = {
    **linear("up", "multi_modal_projector.linear_1"),
    **linear("down", "multi_modal_projector.linear_2"),
    **linear("merge.up", "patch_merge_mlp.linear_1"),
    **linear("merge.down", "patch_merge_mlp.linear_2"),
}
T5_CROSS = {
    **norm("cross.norm", "layer.1.layer_norm"),
    **linear("cross.q", "layer.1.EncDecAttention.q"),
    **linear("cross.kv", "layer.1.EncDecAttention.k"),
    **linear("cross.kv:1", "layer.1.EncDecAttention.v"),
    **linear("cross.proj", "layer.1.EncDecAttention.o"),
}
T5_TABLE = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
"""Of all layers of a stack, where they share it."""
