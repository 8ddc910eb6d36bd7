"""Registry of model builders: architecture or model_type -> builder function.

Known architectures without support are registered with a refusal.
"""

from __future__ import annotations

from typing import Final

_PACKAGE: Final = "shardwright.model"

_BUILDERS: Final[dict[str, str]] = {
    "families.decoders.llama:build": "LlamaForCausalLM llama",
    "families.decoders.llama:build_mistral": "MistralForCausalLM mistral",
    "families.decoders.llama:build_phi3": "Phi3ForCausalLM phi3",
    "families.decoders.llama:build_qwen2": "Qwen2ForCausalLM qwen2",
    "families.decoders.llama:build_qwen3": "Qwen3ForCausalLM qwen3",
    "families.decoders.gemma:build_gemma": "GemmaForCausalLM gemma",
    "families.decoders.gemma:build_gemma2": "Gemma2ForCausalLM gemma2",
    "families.decoders.gemma:build_gemma3": "Gemma3ForCausalLM gemma3_text",
    "families.decoders.llama:build_glm": "GlmForCausalLM glm",
    "families.decoders.llama:build_glm4": "Glm4ForCausalLM glm4",
    "families.decoders.gpt_opt_bloom_falcon:build_gpt2": "GPT2LMHeadModel gpt2",
    "families.decoders.gpt_opt_bloom_falcon:build_gpt_neox": "GPTNeoXForCausalLM gpt_neox",
    "families.decoders.gpt_opt_bloom_falcon:build_opt": "OPTForCausalLM opt",
    "families.decoders.gpt_opt_bloom_falcon:build_bloom": "BloomForCausalLM bloom",
    "families.decoders.gpt_opt_bloom_falcon:build_mpt": "MptForCausalLM mpt MPTForCausalLM",
    "families.decoders.gpt_opt_bloom_falcon:build_nemotron": "NemotronForCausalLM nemotron",
    "families.decoders.llama:build_olmo2": "Olmo2ForCausalLM olmo2",
    "families.decoders.llama:build_olmo3": "Olmo3ForCausalLM olmo3",
    "families.decoders.llama:build_exaone4": "Exaone4ForCausalLM exaone4",
    "families.decoders.llama:build_smollm3": "SmolLM3ForCausalLM smollm3",
    "families.decoders.llama:build_seed_oss": "SeedOssForCausalLM seed_oss",
    "families.decoders.llama:build_arcee": "ArceeForCausalLM arcee",
    "families.decoders.llama:build_helium": "HeliumForCausalLM helium",
    "families.decoders.llama:build_ernie4_5": ("Ernie4_5ForCausalLM ernie4_5 Ernie4_5_ForCausalLM"),
    "families.decoders.llama:build_granite": "GraniteForCausalLM granite",
    "families.decoders.stablelm_phi_gptj_cohere:build_stablelm": (
        "StableLmForCausalLM stablelm StableLMEpochForCausalLM"
    ),
    "families.decoders.stablelm_phi_gptj_cohere:build_cohere": "CohereForCausalLM cohere",
    "families.decoders.stablelm_phi_gptj_cohere:build_cohere2": "Cohere2ForCausalLM cohere2",
    "families.decoders.stablelm_phi_gptj_cohere:build_phi": "PhiForCausalLM phi",
    "families.decoders.stablelm_phi_gptj_cohere:build_gptj": "GPTJForCausalLM gptj",
    "families.decoders.gpt_opt_bloom_falcon:build_falcon": "FalconForCausalLM falcon",
    "families.decoders.gpt_opt_bloom_falcon:build_starcoder2": "Starcoder2ForCausalLM starcoder2",
    "families.decoders.gpt_opt_bloom_falcon:build_gpt_bigcode": "GPTBigCodeForCausalLM gpt_bigcode",
    "families.decoders.mixture_of_experts:build_mixtral": "MixtralForCausalLM mixtral",
    "families.decoders.mixture_of_experts:build_qwen2_moe": "Qwen2MoeForCausalLM qwen2_moe",
    "families.decoders.mixture_of_experts:build_qwen3_moe": "Qwen3MoeForCausalLM qwen3_moe",
    "families.decoders.mixture_of_experts:build_olmoe": "OlmoeForCausalLM olmoe",
    "families.decoders.mixture_of_experts:build_glm4_moe": "Glm4MoeForCausalLM glm4_moe",
    "families.decoders.mixture_of_experts:build_gpt_oss": "GptOssForCausalLM gpt_oss",
    "families.decoders.deepseek:build_v2": "DeepseekV2ForCausalLM deepseek_v2",
    "families.decoders.deepseek:build_v3": "DeepseekV3ForCausalLM deepseek_v3 kimi_k2",
    "families.decoders.llama4:build": "Llama4ForCausalLM llama4_text",
    "blocks.mamba:build_mamba2": "Mamba2ForCausalLM mamba2",
    "blocks.mamba:build_mamba": "MambaForCausalLM mamba",
    "families.decoders.state_space_hybrids:build_jamba": "JambaForCausalLM jamba",
    "families.decoders.state_space_hybrids:build_falcon_h1": "FalconH1ForCausalLM falcon_h1",
    "families.decoders.state_space_hybrids:build_granite_hybrid": (
        "GraniteMoeHybridForCausalLM granitemoehybrid"
    ),
    "families.decoders.nemotron_h:build_nemotron_h": "NemotronHForCausalLM nemotron_h",
    "families.decoders.qwen3_next:build_qwen3_next": "Qwen3NextForCausalLM qwen3_next",
    "families.decoders.qwen3_next:build_qwen3_5": "Qwen3_5ForCausalLM qwen3_5_text",
    "families.decoders.qwen3_next:build_qwen3_5_moe": "Qwen3_5MoeForCausalLM qwen3_5_moe_text",
    "families.decoders.deepseek_sparse_attention:build_deepseek_v32": (
        "DeepseekV32ForCausalLM deepseek_v32"
    ),
    "families.decoders.deepseek_sparse_attention:build_glm_moe_dsa": (
        "GlmMoeDsaForCausalLM glm_moe_dsa"
    ),
    "families.decoders.minimax_m3:build_minimax_m3": (
        "MiniMaxM3ForCausalLM MiniMaxM3SparseForCausalLM minimax_m3 "
        "MiniMaxM3VLForCausalLM minimax_m3_vl_text"
    ),
    "families.decoders.minimax_mimo_step_nemotron:build_minimax_m2": (
        "MiniMaxM2ForCausalLM minimax_m2"
    ),
    "families.decoders.minimax_mimo_step_nemotron:build_mimo": "MiMoForCausalLM mimo",
    "families.decoders.minimax_mimo_step_nemotron:build_mimo_v2": (
        "MiMoV2FlashForCausalLM mimo_v2_flash"
    ),
    "families.decoders.minimax_mimo_step_nemotron:build_step3p7": (
        "Step3p7FlashForCausalLM step3p7_text"
    ),
    "families.decoders.minimax_mimo_step_nemotron:build_nemotron_nas": (
        "DeciLMForCausalLM nemotron-nas"
    ),
    "families.decoders.gemma4:build_gemma4": "Gemma4ForCausalLM gemma4_text",
    "families.refused_architectures:refuse_deepseek_v4": "DeepseekV4ForCausalLM deepseek_v4",
    "families.refused_architectures:refuse_kimi_k3": "KimiK3ForConditionalGeneration kimi_k3",
    "families.decoders.bert_and_t5:build_bert": "BertForMaskedLM bert",
    "families.decoders.bert_and_t5:build_t5": "T5ForConditionalGeneration t5",
    "families.decoders.bert_and_t5:build_mt5": "MT5ForConditionalGeneration mt5",
    "families.decoders.bert_and_t5:build_umt5": "UMT5ForConditionalGeneration umt5",
    "families.vision_language_models:build_llava": "LlavaForConditionalGeneration llava",
    "families.vision_language_models:build_qwen3_vl": "Qwen3VLForConditionalGeneration qwen3_vl",
    "families.vision_language_models:build_qwen3_vl_moe": (
        "Qwen3VLMoeForConditionalGeneration qwen3_vl_moe"
    ),
    "families.vision_language_models:build_qwen3_5_vl": "Qwen3_5ForConditionalGeneration qwen3_5",
    "families.vision_language_models:build_qwen3_5_moe_vl": (
        "Qwen3_5MoeForConditionalGeneration qwen3_5_moe"
    ),
    "families.vision_language_models:build_gemma4_vl": "Gemma4ForConditionalGeneration gemma4",
    "families.vision_language_models:build_kimi_k25": (
        "KimiK25ForConditionalGeneration Kimi_K25ForConditionalGeneration kimi_k25"
    ),
    "families.vision_language_models:build_minimax_m3_vl": (
        "MiniMaxM3SparseForConditionalGeneration minimax_m3_vl"
    ),
    "families.vision_language_models:build_llama4": "Llama4ForConditionalGeneration llama4",
}
"""Module below `_PACKAGE` and function -> ``architectures[0]``, then other names of the family."""
REGISTRY: Final = {
    name: f"{_PACKAGE}.{target}" for target, names in _BUILDERS.items() for name in names.split()
}
"""Architecture or model_type -> builder."""
ARCHITECTURES: Final = {
    f"{_PACKAGE}.{target}": names.split()[0] for target, names in _BUILDERS.items()
}
"""Builder -> architecture of its models."""
TEXT_CONFIGS: Final = ("text_config", "llm_config", "language_config")
"""Names of the section of the language model in a vision-language configuration."""
