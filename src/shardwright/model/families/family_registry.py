"""The registry: builders of models and refusals, each with the architecture that it builds and
other names that mean the same.
"""

from __future__ import annotations

from typing import Final

_PACKAGE: Final = "shardwright.model.families"

_BUILDERS: Final[dict[str, str]] = {
    "decoders.llama:build": "LlamaForCausalLM llama",
    "decoders.llama:build_mistral": "MistralForCausalLM mistral",
    "decoders.llama:build_phi3": "Phi3ForCausalLM phi3",
    "decoders.llama:build_qwen2": "Qwen2ForCausalLM qwen2",
    "decoders.llama:build_qwen3": "Qwen3ForCausalLM qwen3",
    "decoders.gemma:build_gemma": "GemmaForCausalLM gemma",
    "decoders.gemma:build_gemma2": "Gemma2ForCausalLM gemma2",
    "decoders.gemma:build_gemma3": "Gemma3ForCausalLM gemma3_text",
    "decoders.llama:build_glm": "GlmForCausalLM glm",
    "decoders.llama:build_glm4": "Glm4ForCausalLM glm4",
    "decoders.gpt:build_gpt2": "GPT2LMHeadModel gpt2",
    "decoders.gpt:build_gpt_neox": "GPTNeoXForCausalLM gpt_neox",
    "decoders.gpt:build_opt": "OPTForCausalLM opt",
    "decoders.gpt:build_bloom": "BloomForCausalLM bloom",
    "decoders.gpt:build_mpt": "MptForCausalLM mpt MPTForCausalLM",
    "decoders.gpt:build_nemotron": "NemotronForCausalLM nemotron",
    "decoders.llama:build_olmo2": "Olmo2ForCausalLM olmo2",
    "decoders.llama:build_olmo3": "Olmo3ForCausalLM olmo3",
    "decoders.llama:build_exaone4": "Exaone4ForCausalLM exaone4",
    "decoders.llama:build_smollm3": "SmolLM3ForCausalLM smollm3",
    "decoders.llama:build_seed_oss": "SeedOssForCausalLM seed_oss",
    "decoders.llama:build_arcee": "ArceeForCausalLM arcee",
    "decoders.llama:build_helium": "HeliumForCausalLM helium",
    "decoders.llama:build_ernie4_5": ("Ernie4_5ForCausalLM ernie4_5 Ernie4_5_ForCausalLM"),
    "decoders.llama:build_granite": "GraniteForCausalLM granite",
    "decoders.parallel_blocks:build_stablelm": (
        "StableLmForCausalLM stablelm StableLMEpochForCausalLM"
    ),
    "decoders.parallel_blocks:build_cohere": "CohereForCausalLM cohere",
    "decoders.parallel_blocks:build_cohere2": "Cohere2ForCausalLM cohere2",
    "decoders.parallel_blocks:build_phi": "PhiForCausalLM phi",
    "decoders.parallel_blocks:build_gptj": "GPTJForCausalLM gptj",
    "decoders.gpt:build_falcon": "FalconForCausalLM falcon",
    "decoders.gpt:build_starcoder2": "Starcoder2ForCausalLM starcoder2",
    "decoders.gpt:build_gpt_bigcode": "GPTBigCodeForCausalLM gpt_bigcode",
    "decoders.mixture_of_experts:build_mixtral": "MixtralForCausalLM mixtral",
    "decoders.mixture_of_experts:build_qwen2_moe": "Qwen2MoeForCausalLM qwen2_moe",
    "decoders.mixture_of_experts:build_qwen3_moe": "Qwen3MoeForCausalLM qwen3_moe",
    "decoders.mixture_of_experts:build_olmoe": "OlmoeForCausalLM olmoe",
    "decoders.mixture_of_experts:build_glm4_moe": "Glm4MoeForCausalLM glm4_moe",
    "decoders.mixture_of_experts:build_gpt_oss": "GptOssForCausalLM gpt_oss",
    "decoders.deepseek:build_v2": "DeepseekV2ForCausalLM deepseek_v2",
    "decoders.deepseek:build_v3": "DeepseekV3ForCausalLM deepseek_v3 kimi_k2",
    "decoders.llama4:build": "Llama4ForCausalLM llama4_text",
    "shardwright.model.blocks.mamba:build_mamba2": "Mamba2ForCausalLM mamba2",
    "shardwright.model.blocks.mamba:build_mamba": "MambaForCausalLM mamba",
    "decoders.state_space_hybrids:build_jamba": "JambaForCausalLM jamba",
    "decoders.state_space_hybrids:build_falcon_h1": "FalconH1ForCausalLM falcon_h1",
    "decoders.state_space_hybrids:build_granite_hybrid": (
        "GraniteMoeHybridForCausalLM granitemoehybrid"
    ),
    "decoders.state_space_hybrids:build_nemotron_h": "NemotronHForCausalLM nemotron_h",
    "decoders.qwen3_next:build_qwen3_next": "Qwen3NextForCausalLM qwen3_next",
    "decoders.qwen3_next:build_qwen3_5": "Qwen3_5ForCausalLM qwen3_5_text",
    "decoders.qwen3_next:build_qwen3_5_moe": "Qwen3_5MoeForCausalLM qwen3_5_moe_text",
    "decoders.deepseek_sparse_attention:build_deepseek_v32": "DeepseekV32ForCausalLM deepseek_v32",
    "decoders.deepseek_sparse_attention:build_glm_moe_dsa": "GlmMoeDsaForCausalLM glm_moe_dsa",
    "decoders.minimax_m3:build_minimax_m3": (
        "MiniMaxM3ForCausalLM MiniMaxM3SparseForCausalLM minimax_m3 "
        "MiniMaxM3VLForCausalLM minimax_m3_vl_text"
    ),
    "decoders.minimax:build_minimax_m2": "MiniMaxM2ForCausalLM minimax_m2",
    "decoders.minimax:build_mimo": "MiMoForCausalLM mimo",
    "decoders.minimax:build_mimo_v2": "MiMoV2FlashForCausalLM mimo_v2_flash",
    "decoders.minimax:build_step3p7": "Step3p7FlashForCausalLM step3p7_text",
    "decoders.minimax:build_nemotron_nas": "DeciLMForCausalLM nemotron-nas",
    "decoders.gemma4:build_gemma4": "Gemma4ForCausalLM gemma4_text",
    "refused_architectures:refuse_deepseek_v4": "DeepseekV4ForCausalLM deepseek_v4",
    "refused_architectures:refuse_kimi_k3": "KimiK3ForConditionalGeneration kimi_k3",
    "decoders.bert_and_t5:build_bert": "BertForMaskedLM bert",
    "decoders.bert_and_t5:build_t5": "T5ForConditionalGeneration t5",
    "decoders.bert_and_t5:build_mt5": "MT5ForConditionalGeneration mt5",
    "decoders.bert_and_t5:build_umt5": "UMT5ForConditionalGeneration umt5",
    "vision_language_models:build_llava": "LlavaForConditionalGeneration llava",
    "vision_language_models:build_qwen3_vl": "Qwen3VLForConditionalGeneration qwen3_vl",
    "vision_language_models:build_qwen3_vl_moe": (
        "Qwen3VLMoeForConditionalGeneration qwen3_vl_moe"
    ),
    "vision_language_models:build_qwen3_5_vl": "Qwen3_5ForConditionalGeneration qwen3_5",
    "vision_language_models:build_qwen3_5_moe_vl": (
        "Qwen3_5MoeForConditionalGeneration qwen3_5_moe"
    ),
    "vision_language_models:build_gemma4_vl": "Gemma4ForConditionalGeneration gemma4",
    "vision_language_models:build_kimi_k25": (
        "KimiK25ForConditionalGeneration Kimi_K25ForConditionalGeneration kimi_k25"
    ),
    "vision_language_models:build_minimax_m3_vl": (
        "MiniMaxM3SparseForConditionalGeneration minimax_m3_vl"
    ),
    "vision_language_models:build_llama4": "Llama4ForConditionalGeneration llama4",
}
"""Module below `_PACKAGE` and function -> ``architectures[0]``, then other names of the family."""
REGISTRY: Final = {
    name: f"{_PACKAGE}.{target}" for target, names in _BUILDERS.items() for name in names.split()
}
"""Architecture or model_type -> builder."""
ARCHITECTURES: Final = {
    f"{_PACKAGE}.{target}": names.split()[0] for target, names in _BUILDERS.items()
}
"""Builder -> the architecture that its models have."""
TEXT_CONFIGS: Final = ("text_config", "llm_config", "language_config")
"""Sections of a configuration that describe the language model of a model with images."""
