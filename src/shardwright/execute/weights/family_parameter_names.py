"""Hugging Face parameter names of each model family, as data.

Names are those that the families' classes in Transformers save. A family without a table here is
rejected with an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardwright.errors import DataError
from shardwright.execute.weights.hugging_face_layer_parameter_names import (
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
from shardwright.execute.weights.image_parameter_names import OF_IMAGES
from shardwright.execute.weights.naming_rules import (
    FamilyNames,
    LayerStackNames,
    convolution_names,
    expert_names,
    fused_projection,
    in_rotary_pairs,
    interleaved,
    interleaved_by_head,
    linear_names,
    norm_names,
    renamed,
    same_tensor,
    shared_experts,
    side_by_side,
    stored_less_one,
    with_prefix,
)

CONFIG: Final = "config.json"
"""File that describes the model of a folder of weights."""

FAMILY_NAMES: Final[Mapping[str, FamilyNames]] = {
    **{
        architecture: FamilyNames(name=architecture, outer=OUTER, layers=LLAMA)
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
        architecture: FamilyNames(name=architecture, outer=OUTER, layers=in_rotary_pairs(LLAMA))
        for architecture in (
            "HeliumForCausalLM",
            "Ernie4_5ForCausalLM",
            "CohereForCausalLM",
            "Cohere2ForCausalLM",
        )
    },
    "ArceeForCausalLM": FamilyNames(name="ArceeForCausalLM", outer=OUTER, layers=UNGATED),
    "NemotronForCausalLM": FamilyNames(
        name="NemotronForCausalLM", outer=stored_less_one(OUTER), layers=stored_less_one(UNGATED)
    ),
    "Starcoder2ForCausalLM": FamilyNames(
        name="Starcoder2ForCausalLM",
        outer=OUTER,
        layers={
            **NORMS,
            **SELF,
            **linear_names("up", "mlp.c_fc"),
            **linear_names("down", "mlp.c_proj"),
        },
    ),
    "GlmForCausalLM": FamilyNames(
        name="GlmForCausalLM", outer=OUTER, layers=in_rotary_pairs(FUSED_GATE)
    ),
    "Glm4ForCausalLM": FamilyNames(
        name="Glm4ForCausalLM",
        outer=OUTER,
        layers={
            **in_rotary_pairs(FUSED_GATE),
            **norm_names("post_norm1", "post_self_attn_layernorm"),
            **norm_names("post_norm2", "post_mlp_layernorm"),
        },
    ),
    "Glm4MoeForCausalLM": FamilyNames(
        name="Glm4MoeForCausalLM",
        outer=OUTER,
        layers={
            **LLAMA,
            **EXPERTS,
            **shared_experts("mlp.shared_experts"),
            **linear_names("router", "mlp.gate"),
            **same_tensor(router__correction="mlp.gate.e_score_correction_bias"),
        },
        predictors=PREDICTOR,
    ),
    "PhiForCausalLM": FamilyNames(
        name="PhiForCausalLM",
        outer={**OUTER, **norm_names("norm", "model.final_layernorm")},
        layers=PHI,
    ),
    "GPTNeoXForCausalLM": FamilyNames(
        name="GPTNeoXForCausalLM",
        outer={
            **same_tensor(embed__weight="gpt_neox.embed_in.weight"),
            **norm_names("norm", "gpt_neox.final_layer_norm"),
            **linear_names("logits", "embed_out"),
        },
        layers=NEOX,
        stem="gpt_neox.layers.{layer}.",
        base="gpt_neox.",
    ),
    "OPTForCausalLM": FamilyNames(
        name="OPTForCausalLM",
        outer={
            **same_tensor(
                embed__weight="model.decoder.embed_tokens.weight",
                embed__positions="model.decoder.embed_positions.weight",
            ),
            **norm_names("norm", "model.decoder.final_layer_norm"),
            **linear_names("logits", "lm_head"),
        },
        layers=OPT,
        stem="model.decoder.layers.{layer}.",
        base="model.",
    ),
    "FalconForCausalLM": FamilyNames(
        name="FalconForCausalLM",
        outer={
            **same_tensor(embed__weight="transformer.word_embeddings.weight"),
            **norm_names("norm", "transformer.ln_f"),
            **linear_names("logits", "lm_head"),
        },
        layers=BLOOM,
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "GPTJForCausalLM": FamilyNames(
        name="GPTJForCausalLM",
        outer={
            **same_tensor(embed__weight="transformer.wte.weight"),
            **norm_names("norm", "transformer.ln_f"),
            **linear_names("logits", "lm_head"),
        },
        layers=in_rotary_pairs(GPTJ),
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "GPTBigCodeForCausalLM": FamilyNames(
        name="GPTBigCodeForCausalLM",
        outer={
            **same_tensor(
                embed__weight="transformer.wte.weight", embed__positions="transformer.wpe.weight"
            ),
            **norm_names("norm", "transformer.ln_f"),
            **linear_names("logits", "lm_head"),
        },
        layers={**CODE, **fused_projection("qkv", "attn.c_attn", parts=3, grouped=True)},
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "OlmoeForCausalLM": FamilyNames(
        name="OlmoeForCausalLM",
        outer=OUTER,
        layers={**LLAMA, **EXPERTS, **linear_names("router", "mlp.gate")},
    ),
    **{
        architecture: FamilyNames(
            name=architecture, outer=OUTER, layers={**SELF, **MLP, **POST_NORMS}
        )
        for architecture in ("Olmo2ForCausalLM", "Olmo3ForCausalLM", "Exaone4ForCausalLM")
    },
    "Llama4ForCausalLM": FamilyNames(
        name="Llama4ForCausalLM",
        outer=OUTER,
        layers={
            **NORMS,
            **in_rotary_pairs(SELF),
            **renamed(MLP, "mlp.", "feed_forward."),
            **shared_experts("feed_forward.shared_expert"),
            **linear_names("router", "feed_forward.router"),
            **side_by_side("experts.up.weight", "feed_forward.experts.gate_up_proj"),
            **same_tensor(experts__down__weight="feed_forward.experts.down_proj"),
        },
    ),
    "GptOssForCausalLM": FamilyNames(
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
            **linear_names("router", "mlp.router"),
            **interleaved("experts.up.weight", "mlp.experts.gate_up_proj"),
            **interleaved("experts.up.bias", "mlp.experts.gate_up_proj_bias"),
        },
    ),
    "NemotronHForCausalLM": FamilyNames(
        name="NemotronHForCausalLM",
        outer=MAMBA_OUTER,
        layers={
            **MIXER,
            **fused_projection("in_proj", "mixer.in_proj", parts=5),
            **convolution_names(3),
            **linear_names("qkv", "mixer.q_proj"),
            **linear_names("qkv:1", "mixer.k_proj"),
            **linear_names("qkv:2", "mixer.v_proj"),
            **linear_names("proj", "mixer.o_proj"),
            **linear_names("up", "mixer.up_proj"),
            **linear_names("down", "mixer.down_proj"),
            **linear_names("router", "mixer.gate"),
            **same_tensor(router__correction="mixer.gate.e_score_correction_bias"),
            **linear_names("experts.up", "mixer.experts.{expert}.up_proj"),
            **linear_names("experts.down", "mixer.experts.{expert}.down_proj"),
            **linear_names("shared.up", "mixer.shared_experts.up_proj"),
            **linear_names("shared.down", "mixer.shared_experts.down_proj"),
        },
        stem="backbone.layers.{layer}.",
    ),
    "FalconH1ForCausalLM": FamilyNames(
        name="FalconH1ForCausalLM",
        outer={**OUTER, **norm_names("norm", "model.final_layernorm")},
        layers={
            **NORMS,
            **norm_names("norm2", "pre_ff_layernorm"),
            **SELF,
            **renamed(MLP, "mlp.", "feed_forward."),
            **with_prefix(
                "ssm.",
                renamed(
                    {
                        **MIXER,
                        **fused_projection("in_proj", "mixer.in_proj", parts=5),
                        **convolution_names(3),
                    },
                    "mixer.",
                    "mamba.",
                ),
            ),
        },
    ),
    "Qwen3NextForCausalLM": FamilyNames(
        name="Qwen3NextForCausalLM",
        outer=stored_less_one(OUTER),
        layers={
            **stored_less_one({**LLAMA, **EXPERTS, **shared_experts("mlp.shared_expert")}),
            **linear_names("router", "mlp.gate"),
            **linear_names("shared.gate", "mlp.shared_expert_gate"),
            **interleaved_by_head(("qkv.weight", "qkv.weight.3"), "self_attn.q_proj"),
            **interleaved_by_head(
                tuple(f"in_proj.weight{i}" for i in ("", ".1", ".2", ".3")),
                "linear_attn.in_proj_qkvz",
            ),
            **interleaved_by_head(
                ("in_proj.weight.4", "in_proj.weight.5"),
                "linear_attn.in_proj_ba",
                heads="in_proj.weight",
            ),
            **renamed(convolution_names(3), "mixer.", "linear_attn."),
            **same_tensor(
                scan__a_log="linear_attn.A_log",
                scan__dt_bias="linear_attn.dt_bias",
                gate_norm__weight="linear_attn.norm.weight",
            ),
            **linear_names("out_proj", "linear_attn.out_proj"),
        },
    ),
    "JambaForCausalLM": FamilyNames(
        name="JambaForCausalLM",
        outer={**OUTER, **norm_names("norm", "model.final_layernorm")},
        layers={
            **norm_names("norm1", "input_layernorm"),
            **norm_names("norm2", "pre_ff_layernorm"),
            **SELF,
            **renamed(MAMBA1, "mixer.", "mamba."),
            **same_tensor(
                x_norm__dt="mamba.dt_layernorm.weight",
                x_norm__b="mamba.b_layernorm.weight",
                x_norm__c="mamba.c_layernorm.weight",
            ),
            **renamed({**MLP, **EXPERTS}, "mlp.", "feed_forward."),
            **linear_names("router", "feed_forward.router"),
        },
    ),
    "Phi3ForCausalLM": FamilyNames(
        name="Phi3ForCausalLM",
        outer=OUTER,
        layers={
            **LLAMA,
            **fused_projection("qkv", "self_attn.qkv_proj", parts=3),
            **fused_projection("up", "mlp.gate_up_proj", parts=2),
        },
    ),
    "MixtralForCausalLM": FamilyNames(
        name="MixtralForCausalLM",
        outer=OUTER,
        layers={
            **NORMS,
            **SELF,
            **linear_names("router", "block_sparse_moe.gate"),
            **expert_names(tuple(f"block_sparse_moe.experts.{{expert}}.w{i}" for i in (1, 3, 2))),  # type: ignore[arg-type]
        },
    ),
    "Qwen2MoeForCausalLM": FamilyNames(
        name="Qwen2MoeForCausalLM",
        outer=OUTER,
        layers={
            **LLAMA,
            **EXPERTS,
            **shared_experts("mlp.shared_expert"),
            **linear_names("router", "mlp.gate"),
            **linear_names("shared.gate", "mlp.shared_expert_gate"),
        },
    ),
    "Qwen3MoeForCausalLM": FamilyNames(
        name="Qwen3MoeForCausalLM",
        outer=OUTER,
        layers={**LLAMA, **EXPERTS, **linear_names("router", "mlp.gate")},
    ),
    "DeepseekV2ForCausalLM": FamilyNames(name="DeepseekV2ForCausalLM", outer=OUTER, layers=LATENT),
    "DeepseekV3ForCausalLM": FamilyNames(
        name="DeepseekV3ForCausalLM", outer=OUTER, layers=LATENT, predictors=PREDICTOR
    ),
    "GemmaForCausalLM": FamilyNames(
        name="GemmaForCausalLM", outer=stored_less_one(OUTER), layers=stored_less_one(LLAMA)
    ),
    **{
        architecture: FamilyNames(
            name=architecture, outer=stored_less_one(OUTER), layers=stored_less_one(GEMMA2)
        )
        for architecture in ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
    },
    "Gemma4ForCausalLM": FamilyNames(name="Gemma4ForCausalLM", outer=OUTER, layers=GEMMA4),
    **{
        architecture: FamilyNames(
            name=architecture,
            outer={
                **same_tensor(embed__weight="shared.weight", position_bias=f"decoder.{T5_TABLE}"),
                **norm_names("norm", "decoder.final_layer_norm"),
                **linear_names("logits", "lm_head"),
            },
            stacks={
                "encoder_embed": LayerStackNames(
                    rules=same_tensor(position_bias=f"encoder.{T5_TABLE}")
                ),
                "encoder": LayerStackNames(rules=t5_layer(1), stem="encoder.block.{layer}."),
                "encoder_norm": LayerStackNames(
                    rules=norm_names("norm", "encoder.final_layer_norm")
                ),
                "decoder": LayerStackNames(
                    rules={**t5_layer(2), **T5_CROSS}, stem="decoder.block.{layer}."
                ),
            },
        )
        for architecture in (
            "T5ForConditionalGeneration",
            "MT5ForConditionalGeneration",
            "UMT5ForConditionalGeneration",
        )
    },
    "MiniMaxM3ForCausalLM": FamilyNames(
        name="MiniMaxM3ForCausalLM", outer=stored_less_one(OUTER), layers=stored_less_one(M3_ALONE)
    ),
    "GPT2LMHeadModel": FamilyNames(
        name="GPT2LMHeadModel",
        outer={
            **same_tensor(
                embed__weight="transformer.wte.weight", embed__positions="transformer.wpe.weight"
            ),
            **norm_names("norm", "transformer.ln_f"),
            **linear_names("logits", "lm_head"),
        },
        layers=GPT2,
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "BloomForCausalLM": FamilyNames(
        name="BloomForCausalLM",
        outer={
            **same_tensor(embed__weight="transformer.word_embeddings.weight"),
            **norm_names("embed_norm", "transformer.word_embeddings_layernorm"),
            **norm_names("norm", "transformer.ln_f"),
            **linear_names("logits", "lm_head"),
        },
        layers=BLOOM,
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "Mamba2ForCausalLM": FamilyNames(
        name="Mamba2ForCausalLM",
        outer=MAMBA_OUTER,
        layers={
            **MIXER,
            **fused_projection("in_proj", "mixer.in_proj", parts=5),
            **convolution_names(3),
        },
        stem="backbone.layers.{layer}.",
    ),
    "MambaForCausalLM": FamilyNames(
        name="MambaForCausalLM",
        outer=MAMBA_OUTER,
        layers=MAMBA1,
        stem="backbone.layers.{layer}.",
    ),
    **OF_IMAGES,
}


def naming_rules_of(architecture: str) -> FamilyNames:
    """The naming rules of an architecture's family.

    Raises:
        DataError: the architecture has none; the error lists the families that have.
    """
    family = FAMILY_NAMES.get(architecture)
    if family is None:
        raise DataError(
            f"weights of {architecture} cannot be read or written: its tensor names are not known",
            hint=f"families that can: {', '.join(sorted(FAMILY_NAMES))}",
        )
    return family
