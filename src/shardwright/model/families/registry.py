"""The registry: builders of models and refusals, each with the architecture that it builds and
other names that mean the same.
"""

from __future__ import annotations

from typing import Final

_BUILDERS: Final[dict[str, str]] = {
    "shardwright.model.families.llama:build": "LlamaForCausalLM llama",
    "shardwright.model.families.llama:build_mistral": "MistralForCausalLM mistral",
    "shardwright.model.families.llama:build_phi3": "Phi3ForCausalLM phi3",
    "shardwright.model.families.llama:build_qwen2": "Qwen2ForCausalLM qwen2",
    "shardwright.model.families.llama:build_qwen3": "Qwen3ForCausalLM qwen3",
    "shardwright.model.families.gemma:build_gemma": "GemmaForCausalLM gemma",
    "shardwright.model.families.gemma:build_gemma2": "Gemma2ForCausalLM gemma2",
    "shardwright.model.families.gemma:build_gemma3": "Gemma3ForCausalLM gemma3_text",
    "shardwright.model.families.llama:build_glm": "GlmForCausalLM glm",
    "shardwright.model.families.llama:build_glm4": "Glm4ForCausalLM glm4",
    "shardwright.model.families.gpt:build_gpt2": "GPT2LMHeadModel gpt2",
    "shardwright.model.families.gpt:build_gpt_neox": "GPTNeoXForCausalLM gpt_neox",
    "shardwright.model.families.gpt:build_opt": "OPTForCausalLM opt",
    "shardwright.model.families.gpt:build_bloom": "BloomForCausalLM bloom",
    "shardwright.model.families.gpt:build_mpt": "MptForCausalLM mpt MPTForCausalLM",
    "shardwright.model.families.gpt:build_nemotron": "NemotronForCausalLM nemotron",
    "shardwright.model.families.llama:build_olmo2": "Olmo2ForCausalLM olmo2",
    "shardwright.model.families.llama:build_olmo3": "Olmo3ForCausalLM olmo3",
    "shardwright.model.families.llama:build_exaone4": "Exaone4ForCausalLM exaone4",
    "shardwright.model.families.llama:build_smollm3": "SmolLM3ForCausalLM smollm3",
    "shardwright.model.families.llama:build_seed_oss": "SeedOssForCausalLM seed_oss",
    "shardwright.model.families.llama:build_arcee": "ArceeForCausalLM arcee",
    "shardwright.model.families.llama:build_helium": "HeliumForCausalLM helium",
    "shardwright.model.families.llama:build_ernie4_5": (
        "Ernie4_5ForCausalLM ernie4_5 Ernie4_5_ForCausalLM"
    ),
    "shardwright.model.families.llama:build_granite": "GraniteForCausalLM granite",
    "shardwright.model.families.parallel:build_stablelm": (
        "StableLmForCausalLM stablelm StableLMEpochForCausalLM"
    ),
    "shardwright.model.families.parallel:build_cohere": "CohereForCausalLM cohere",
    "shardwright.model.families.parallel:build_cohere2": "Cohere2ForCausalLM cohere2",
    "shardwright.model.families.parallel:build_phi": "PhiForCausalLM phi",
    "shardwright.model.families.parallel:build_gptj": "GPTJForCausalLM gptj",
    "shardwright.model.families.gpt:build_falcon": "FalconForCausalLM falcon",
    "shardwright.model.families.gpt:build_starcoder2": "Starcoder2ForCausalLM starcoder2",
    "shardwright.model.families.gpt:build_gpt_bigcode": "GPTBigCodeForCausalLM gpt_bigcode",
    "shardwright.model.families.moe:build_mixtral": "MixtralForCausalLM mixtral",
    "shardwright.model.families.moe:build_qwen2_moe": "Qwen2MoeForCausalLM qwen2_moe",
    "shardwright.model.families.moe:build_qwen3_moe": "Qwen3MoeForCausalLM qwen3_moe",
    "shardwright.model.families.moe:build_olmoe": "OlmoeForCausalLM olmoe",
    "shardwright.model.families.moe:build_glm4_moe": "Glm4MoeForCausalLM glm4_moe",
    "shardwright.model.families.moe:build_gpt_oss": "GptOssForCausalLM gpt_oss",
    "shardwright.model.families.deepseek:build_v2": "DeepseekV2ForCausalLM deepseek_v2",
    "shardwright.model.families.deepseek:build_v3": "DeepseekV3ForCausalLM deepseek_v3 kimi_k2",
    "shardwright.model.families.llama4:build": "Llama4ForCausalLM llama4_text",
    "shardwright.model.blocks.mamba:build_mamba2": "Mamba2ForCausalLM mamba2",
    "shardwright.model.blocks.mamba:build_mamba": "MambaForCausalLM mamba",
    "shardwright.model.families.hybrid:build_jamba": "JambaForCausalLM jamba",
    "shardwright.model.families.hybrid:build_falcon_h1": "FalconH1ForCausalLM falcon_h1",
    "shardwright.model.families.hybrid:build_granite_hybrid": (
        "GraniteMoeHybridForCausalLM granitemoehybrid"
    ),
    "shardwright.model.families.hybrid:build_nemotron_h": "NemotronHForCausalLM nemotron_h",
    "shardwright.model.families.qwen:build_qwen3_next": "Qwen3NextForCausalLM qwen3_next",
    "shardwright.model.families.qwen:build_qwen3_5": "Qwen3_5ForCausalLM qwen3_5_text",
    "shardwright.model.families.qwen:build_qwen3_5_moe": "Qwen3_5MoeForCausalLM qwen3_5_moe_text",
    "shardwright.model.families.indexed:build_deepseek_v32": "DeepseekV32ForCausalLM deepseek_v32",
    "shardwright.model.families.indexed:build_glm_moe_dsa": "GlmMoeDsaForCausalLM glm_moe_dsa",
    "shardwright.model.families.minimax_m3:build_minimax_m3": (
        "MiniMaxM3ForCausalLM MiniMaxM3SparseForCausalLM minimax_m3 "
        "MiniMaxM3VLForCausalLM minimax_m3_vl_text"
    ),
    "shardwright.model.families.minimax:build_minimax_m2": "MiniMaxM2ForCausalLM minimax_m2",
    "shardwright.model.families.minimax:build_mimo": "MiMoForCausalLM mimo",
    "shardwright.model.families.minimax:build_mimo_v2": "MiMoV2FlashForCausalLM mimo_v2_flash",
    "shardwright.model.families.minimax:build_step3p7": "Step3p7FlashForCausalLM step3p7_text",
    "shardwright.model.families.minimax:build_nemotron_nas": "DeciLMForCausalLM nemotron-nas",
    "shardwright.model.families.gemma4:build_gemma4": "Gemma4ForCausalLM gemma4_text",
    "shardwright.model.families.refused:refuse_deepseek_v4": "DeepseekV4ForCausalLM deepseek_v4",
    "shardwright.model.families.refused:refuse_kimi_k3": "KimiK3ForConditionalGeneration kimi_k3",
    "shardwright.model.families.encoder_decoder:build_bert": "BertForMaskedLM bert",
    "shardwright.model.families.encoder_decoder:build_t5": "T5ForConditionalGeneration t5",
    "shardwright.model.families.encoder_decoder:build_mt5": "MT5ForConditionalGeneration mt5",
    "shardwright.model.families.encoder_decoder:build_umt5": "UMT5ForConditionalGeneration umt5",
    "shardwright.model.families.vision:build_llava": "LlavaForConditionalGeneration llava",
    "shardwright.model.families.vision:build_qwen3_vl": "Qwen3VLForConditionalGeneration qwen3_vl",
    "shardwright.model.families.vision:build_qwen3_vl_moe": (
        "Qwen3VLMoeForConditionalGeneration qwen3_vl_moe"
    ),
    "shardwright.model.families.vision:build_qwen3_5_vl": "Qwen3_5ForConditionalGeneration qwen3_5",
    "shardwright.model.families.vision:build_qwen3_5_moe_vl": (
        "Qwen3_5MoeForConditionalGeneration qwen3_5_moe"
    ),
    "shardwright.model.families.vision:build_gemma4_vl": "Gemma4ForConditionalGeneration gemma4",
    "shardwright.model.families.vision:build_kimi_k25": (
        "KimiK25ForConditionalGeneration Kimi_K25ForConditionalGeneration kimi_k25"
    ),
    "shardwright.model.families.vision:build_minimax_m3_vl": (
        "MiniMaxM3SparseForConditionalGeneration minimax_m3_vl"
    ),
    "shardwright.model.families.vision:build_llama4": "Llama4ForConditionalGeneration llama4",
}
"""Module and function -> ``architectures[0]``, then model types and other spellings."""
REGISTRY: Final = {name: target for target, names in _BUILDERS.items() for name in names.split()}
"""Architecture or model_type -> builder."""
ARCHITECTURES: Final = {target: names.split()[0] for target, names in _BUILDERS.items()}
"""Builder -> the architecture that its models have."""
TEXT_CONFIGS: Final = ("text_config", "llm_config", "language_config")
"""Sections of a configuration that describe the language model of a model with images."""
