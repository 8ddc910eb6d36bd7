"""Names of the parameters of each family of models in a Hugging Face checkpoint, as data.

Names are those that the families' classes in Transformers save. A family that has no table here is
refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardwright.errors import DataError
from shardwright.execute.weights.image_parameter_names import OF_IMAGES
from shardwright.execute.weights.layer_parameter_names import (
    BLOOM,
    CODE,
    EXPERTS,
    FUSED_GATE,
    GEMMA2,
    GEMMA4,
    GPT2,
    GPTJ,
    LATENT,
    LLAMA,
    M3_ALONE,
    MAMBA1,
    MAMBA_OUTER,
    MIXER,
    MLP,
    NEOX,
    NORMS,
    OPT,
    OUTER,
    PHI,
    POST_NORMS,
    PREDICTOR,
    SELF,
    T5_CROSS,
    T5_TABLE,
    UNGATED,
    t5_layer,
)
from shardwright.execute.weights.naming_rules import (
    Family,
    Stack,
    convolved,
    experts_of,
    fused,
    in_heads,
    in_rotary_pairs,
    interleaved,
    linear,
    norm,
    renamed,
    same_tensor,
    shared_experts,
    side_by_side,
    stored_less_one,
    with_prefix,
)

CONFIG: Final = "config.json"
"""What says which model a folder of weights is of."""

FAMILIES: Final[Mapping[str, Family]] = {
    **{
        architecture: Family(name=architecture, outer=OUTER, layers=LLAMA)
        for architecture in (
            *("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
            *(
                "SmolLM3ForCausalLM",
                "SeedOssForCausalLM",
                "GraniteForCausalLM",
                "StableLmForCausalLM",
            ),
        )
    },
    **{
        architecture: Family(name=architecture, outer=OUTER, layers=in_rotary_pairs(LLAMA))
        for architecture in (
            "HeliumForCausalLM",
            "Ernie4_5ForCausalLM",
            "CohereForCausalLM",
            "Cohere2ForCausalLM",
        )
    },
    "ArceeForCausalLM": Family(name="ArceeForCausalLM", outer=OUTER, layers=UNGATED),
    "NemotronForCausalLM": Family(
        name="NemotronForCausalLM", outer=stored_less_one(OUTER), layers=stored_less_one(UNGATED)
    ),
    "Starcoder2ForCausalLM": Family(
        name="Starcoder2ForCausalLM",
        outer=OUTER,
        layers={**NORMS, **SELF, **linear("up", "mlp.c_fc"), **linear("down", "mlp.c_proj")},
    ),
    "GlmForCausalLM": Family(
        name="GlmForCausalLM", outer=OUTER, layers=in_rotary_pairs(FUSED_GATE)
    ),
    "Glm4ForCausalLM": Family(
        name="Glm4ForCausalLM",
        outer=OUTER,
        layers={
            **in_rotary_pairs(FUSED_GATE),
            **norm("post_norm1", "post_self_attn_layernorm"),
            **norm("post_norm2", "post_mlp_layernorm"),
        },
    ),
    "Glm4MoeForCausalLM": Family(
        name="Glm4MoeForCausalLM",
        outer=OUTER,
        layers={
            **LLAMA,
            **EXPERTS,
            **shared_experts("mlp.shared_experts"),
            **linear("router", "mlp.gate"),
            **same_tensor(router__correction="mlp.gate.e_score_correction_bias"),
        },
        predictors=PREDICTOR,
    ),
    "PhiForCausalLM": Family(
        name="PhiForCausalLM", outer={**OUTER, **norm("norm", "model.final_layernorm")}, layers=PHI
    ),
    "GPTNeoXForCausalLM": Family(
        name="GPTNeoXForCausalLM",
        outer={
            **same_tensor(embed__weight="gpt_neox.embed_in.weight"),
            **norm("norm", "gpt_neox.final_layer_norm"),
            **linear("logits", "embed_out"),
        },
        layers=NEOX,
        stem="gpt_neox.layers.{layer}.",
        base="gpt_neox.",
    ),
    "OPTForCausalLM": Family(
        name="OPTForCausalLM",
        outer={
            **same_tensor(
                embed__weight="model.decoder.embed_tokens.weight",
                embed__positions="model.decoder.embed_positions.weight",
            ),
            **norm("norm", "model.decoder.final_layer_norm"),
            **linear("logits", "lm_head"),
        },
        layers=OPT,
        stem="model.decoder.layers.{layer}.",
        base="model.",
    ),
    "FalconForCausalLM": Family(
        name="FalconForCausalLM",
        outer={
            **same_tensor(embed__weight="transformer.word_embeddings.weight"),
            **norm("norm", "transformer.ln_f"),
            **linear("logits", "lm_head"),
        },
        layers=BLOOM,
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "GPTJForCausalLM": Family(
        name="GPTJForCausalLM",
        outer={
            **same_tensor(embed__weight="transformer.wte.weight"),
            **norm("norm", "transformer.ln_f"),
            **linear("logits", "lm_head"),
        },
        layers=in_rotary_pairs(GPTJ),
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "GPTBigCodeForCausalLM": Family(
        name="GPTBigCodeForCausalLM",
        outer={
            **same_tensor(
                embed__weight="transformer.wte.weight", embed__positions="transformer.wpe.weight"
            ),
            **norm("norm", "transformer.ln_f"),
            **linear("logits", "lm_head"),
        },
        layers={**CODE, **fused("qkv", "attn.c_attn", parts=3, grouped=True)},
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "OlmoeForCausalLM": Family(
        name="OlmoeForCausalLM",
        outer=OUTER,
        layers={**LLAMA, **EXPERTS, **linear("router", "mlp.gate")},
    ),
    **{
        architecture: Family(name=architecture, outer=OUTER, layers={**SELF, **MLP, **POST_NORMS})
        for architecture in ("Olmo2ForCausalLM", "Olmo3ForCausalLM", "Exaone4ForCausalLM")
    },
    "Llama4ForCausalLM": Family(
        name="Llama4ForCausalLM",
        outer=OUTER,
        layers={
            **NORMS,
            **in_rotary_pairs(SELF),
            **renamed(MLP, "mlp.", "feed_forward."),
            **shared_experts("feed_forward.shared_expert"),
            **linear("router", "feed_forward.router"),
            **side_by_side("experts.up.weight", "feed_forward.experts.gate_up_proj"),
            **same_tensor(experts__down__weight="feed_forward.experts.down_proj"),
        },
    ),
    "GptOssForCausalLM": Family(
        name="GptOssForCausalLM",
        outer=OUTER,
        layers={
            **NORMS,
            **SELF,
            **same_tensor(
                core__sinks="self_attn.sinks",
                experts__down__weight="mlp.experts.down_proj",
                experts__down__bias="mlp.experts.down_proj_bias",
            ),
            **linear("router", "mlp.router"),
            **interleaved("experts.up.weight", "mlp.experts.gate_up_proj"),
            **interleaved("experts.up.bias", "mlp.experts.gate_up_proj_bias"),
        },
    ),
    "NemotronHForCausalLM": Family(
        name="NemotronHForCausalLM",
        outer=MAMBA_OUTER,
        layers={
            **MIXER,
            **fused("in_proj", "mixer.in_proj", parts=5),
            **convolved(3),
            **linear("qkv", "mixer.q_proj"),
            **linear("qkv:1", "mixer.k_proj"),
            **linear("qkv:2", "mixer.v_proj"),
            **linear("proj", "mixer.o_proj"),
            **linear("up", "mixer.up_proj"),
            **linear("down", "mixer.down_proj"),
            **linear("router", "mixer.gate"),
            **same_tensor(router__correction="mixer.gate.e_score_correction_bias"),
            **linear("experts.up", "mixer.experts.{expert}.up_proj"),
            **linear("experts.down", "mixer.experts.{expert}.down_proj"),
            **linear("shared.up", "mixer.shared_experts.up_proj"),
            **linear("shared.down", "mixer.shared_experts.down_proj"),
        },
        stem="backbone.layers.{layer}.",
    ),
    "FalconH1ForCausalLM": Family(
        name="FalconH1ForCausalLM",
        outer={**OUTER, **norm("norm", "model.final_layernorm")},
        layers={
            **NORMS,
            **norm("norm2", "pre_ff_layernorm"),
            **SELF,
            **renamed(MLP, "mlp.", "feed_forward."),
            **with_prefix(
                "ssm.",
                renamed(
                    {**MIXER, **fused("in_proj", "mixer.in_proj", parts=5), **convolved(3)},
                    "mixer.",
                    "mamba.",
                ),
            ),
        },
    ),
    "Qwen3NextForCausalLM": Family(
        name="Qwen3NextForCausalLM",
        outer=stored_less_one(OUTER),
        layers={
            **stored_less_one({**LLAMA, **EXPERTS, **shared_experts("mlp.shared_expert")}),
            **linear("router", "mlp.gate"),
            **linear("shared.gate", "mlp.shared_expert_gate"),
            **in_heads(("qkv.weight", "qkv.weight.3"), "self_attn.q_proj"),
            **in_heads(
                tuple(f"in_proj.weight{i}" for i in ("", ".1", ".2", ".3")),
                "linear_attn.in_proj_qkvz",
            ),
            **in_heads(
                ("in_proj.weight.4", "in_proj.weight.5"),
                "linear_attn.in_proj_ba",
                heads="in_proj.weight",
            ),
            **renamed(convolved(3), "mixer.", "linear_attn."),
            **same_tensor(
                scan__a_log="linear_attn.A_log",
                scan__dt_bias="linear_attn.dt_bias",
                gate_norm__weight="linear_attn.norm.weight",
            ),
            **linear("out_proj", "linear_attn.out_proj"),
        },
    ),
    "JambaForCausalLM": Family(
        name="JambaForCausalLM",
        outer={**OUTER, **norm("norm", "model.final_layernorm")},
        layers={
            **norm("norm1", "input_layernorm"),
            **norm("norm2", "pre_ff_layernorm"),
            **SELF,
            **renamed(MAMBA1, "mixer.", "mamba."),
            **same_tensor(
                x_norm__dt="mamba.dt_layernorm.weight",
                x_norm__b="mamba.b_layernorm.weight",
                x_norm__c="mamba.c_layernorm.weight",
            ),
            **renamed({**MLP, **EXPERTS}, "mlp.", "feed_forward."),
            **linear("router", "feed_forward.router"),
        },
    ),
    "Phi3ForCausalLM": Family(
        name="Phi3ForCausalLM",
        outer=OUTER,
        layers={
            **LLAMA,
            **fused("qkv", "self_attn.qkv_proj", parts=3),
            **fused("up", "mlp.gate_up_proj", parts=2),
        },
    ),
    "MixtralForCausalLM": Family(
        name="MixtralForCausalLM",
        outer=OUTER,
        layers={
            **NORMS,
            **SELF,
            **linear("router", "block_sparse_moe.gate"),
            **experts_of(tuple(f"block_sparse_moe.experts.{{expert}}.w{i}" for i in (1, 3, 2))),  # type: ignore[arg-type]
        },
    ),
    "Qwen2MoeForCausalLM": Family(
        name="Qwen2MoeForCausalLM",
        outer=OUTER,
        layers={
            **LLAMA,
            **EXPERTS,
            **shared_experts("mlp.shared_expert"),
            **linear("router", "mlp.gate"),
            **linear("shared.gate", "mlp.shared_expert_gate"),
        },
    ),
    "Qwen3MoeForCausalLM": Family(
        name="Qwen3MoeForCausalLM",
        outer=OUTER,
        layers={**LLAMA, **EXPERTS, **linear("router", "mlp.gate")},
    ),
    "DeepseekV2ForCausalLM": Family(name="DeepseekV2ForCausalLM", outer=OUTER, layers=LATENT),
    "DeepseekV3ForCausalLM": Family(
        name="DeepseekV3ForCausalLM", outer=OUTER, layers=LATENT, predictors=PREDICTOR
    ),
    "GemmaForCausalLM": Family(
        name="GemmaForCausalLM", outer=stored_less_one(OUTER), layers=stored_less_one(LLAMA)
    ),
    **{
        architecture: Family(
            name=architecture, outer=stored_less_one(OUTER), layers=stored_less_one(GEMMA2)
        )
        for architecture in ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
    },
    "Gemma4ForCausalLM": Family(name="Gemma4ForCausalLM", outer=OUTER, layers=GEMMA4),
    **{
        architecture: Family(
            name=architecture,
            outer={
                **same_tensor(embed__weight="shared.weight", position_bias=f"decoder.{T5_TABLE}"),
                **norm("norm", "decoder.final_layer_norm"),
                **linear("logits", "lm_head"),
            },
            stacks={
                "encoder_embed": Stack(rules=same_tensor(position_bias=f"encoder.{T5_TABLE}")),
                "encoder": Stack(rules=t5_layer(1), stem="encoder.block.{layer}."),
                "encoder_norm": Stack(rules=norm("norm", "encoder.final_layer_norm")),
                "decoder": Stack(rules={**t5_layer(2), **T5_CROSS}, stem="decoder.block.{layer}."),
            },
        )
        for architecture in (
            "T5ForConditionalGeneration",
            "MT5ForConditionalGeneration",
            "UMT5ForConditionalGeneration",
        )
    },
    "MiniMaxM3ForCausalLM": Family(
        name="MiniMaxM3ForCausalLM", outer=stored_less_one(OUTER), layers=stored_less_one(M3_ALONE)
    ),
    "GPT2LMHeadModel": Family(
        name="GPT2LMHeadModel",
        outer={
            **same_tensor(
                embed__weight="transformer.wte.weight", embed__positions="transformer.wpe.weight"
            ),
            **norm("norm", "transformer.ln_f"),
            **linear("logits", "lm_head"),
        },
        layers=GPT2,
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "BloomForCausalLM": Family(
        name="BloomForCausalLM",
        outer={
            **same_tensor(embed__weight="transformer.word_embeddings.weight"),
            **norm("embed_norm", "transformer.word_embeddings_layernorm"),
            **norm("norm", "transformer.ln_f"),
            **linear("logits", "lm_head"),
        },
        layers=BLOOM,
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "Mamba2ForCausalLM": Family(
        name="Mamba2ForCausalLM",
        outer=MAMBA_OUTER,
        layers={**MIXER, **fused("in_proj", "mixer.in_proj", parts=5), **convolved(3)},
        stem="backbone.layers.{layer}.",
    ),
    "MambaForCausalLM": Family(
        name="MambaForCausalLM",
        outer=MAMBA_OUTER,
        layers=MAMBA1,
        stem="backbone.layers.{layer}.",
    ),
    **OF_IMAGES,
}


def family_of(architecture: str) -> Family:
    """The table of a model's family.

    Raises:
        DataError: there is none; the families that have one are named.
    """
    found = FAMILIES.get(architecture)
    if found is None:
        raise DataError(
            f"weights of {architecture} cannot be read or written: where its parameters stand is"
            " not known",
            hint=f"families that can: {', '.join(sorted(FAMILIES))}",
        )
    return found
