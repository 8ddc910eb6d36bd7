"""Small configurations of families that read images."""

from __future__ import annotations

from tests.execute.published_sizes import ALIKE, PLAIN, Config

LLAVA: Config = {
    "architectures": ["LlavaForConditionalGeneration"],
    "image_token_index": 5,
    "text_config": {**PLAIN, "model_type": "llama"},
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
        "projection_dim": 16,
    },
}
"""Images of four patches."""
KIMI: Config = {
    "architectures": ["Kimi_K25ForConditionalGeneration"],
    "image_token_id": 5,
    "projection_hidden_size": 16,
    "tie_word_embeddings": False,
    "text_config": {
        **ALIKE,
        "num_key_value_heads": 4,
        "model_type": "deepseek_v3",
        "q_lora_rank": 12,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 5,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
    },
    "vision_config": {
        "model_type": "kimi_k25_vision",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 3,
        "pos_emb_height": 4,
        "pos_emb_width": 4,
    },
}
"""Images of sixteen patches, which become four image tokens."""
QWEN3_VL: Config = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 5,
    "video_token_id": 6,
    "tie_word_embeddings": False,
    "text_config": {
        **PLAIN,
        "model_type": "qwen3_vl_text",
        "head_dim": 12,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100.0,
            "mrope_section": [2, 2, 1],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "model_type": "qwen3_vl_vision",
        "depth": 3,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 24,
        "in_channels": 3,
        "patch_size": 3,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 9,
        "deepstack_visual_indexes": [0, 2],
    },
}
"""Images of sixteen patches, which become four image tokens; features of two tower layers go to
both layers of the language model."""
GEMMA4: Config = {
    **PLAIN,
    "architectures": ["Gemma4ForCausalLM"],
    "global_head_dim": 12,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "sliding_window": 4,
    "final_logit_softcapping": 3.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 16,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 50.0,
            "partial_rotary_factor": 0.7,
            "factor": 2.0,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    },
}
GEMMA4_IMAGES: Config = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "image_token_id": 5,
    "tie_word_embeddings": True,
    "text_config": {
        **{key: value for key, value in GEMMA4.items() if key != "architectures"},
        "model_type": "gemma4_text",
        "pad_token_id": 0,
        "use_bidirectional_attention": "vision",
    },
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "patch_size": 3,
        "position_embedding_size": 7,
        "pooling_kernel_size": 2,
        "standardize": True,
    },
}
"""Images of sixteen patches, which become four image tokens, whose embeddings of padding have no
gradient there."""
MINIMAX_M3_TEXT: Config = {
    **{key: value for key, value in PLAIN.items() if key != "pad_token_id"},
    "model_type": "minimax_m3_vl_text",
    "intermediate_size": 12,
    "dense_intermediate_size": 20,
    "shared_intermediate_size": 14,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "mlp_layer_types": ["dense", "sparse"],
    "layer_types": ["full_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    "swiglu_limit": 1.0,
}
MINIMAX_M3: Config = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "model_type": "minimax_m3_vl",
    "image_token_index": 5,
    "video_token_index": 6,
    "projector_hidden_size": 16,
    "text_config": MINIMAX_M3_TEXT,
    "vision_config": {
        "model_type": "minimax_m3_vl_vision",
        "hidden_size": 32,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 3,
        "image_size": 12,
    },
}

IMAGES: dict[str, Config] = {
    "llava": LLAVA,
    "llava whole": {
        **LLAVA,
        "text_config": {**LLAVA["text_config"], "model_type": "qwen2", "tie_word_embeddings": True},
        "vision_feature_select_strategy": "full",
        "vision_feature_layer": 1,
        "multimodal_projector_bias": False,
    },
    "llava of mistral": {
        **LLAVA,
        "text_config": {**LLAVA["text_config"], "model_type": "mistral", "sliding_window": 4},
        "vision_config": {**LLAVA["vision_config"], "hidden_act": "gelu", "layer_norm_eps": 1e-3},
        "projector_hidden_act": "quick_gelu",
        "vision_feature_layer": -1,
    },
    "kimi k2.5": KIMI,
    "kimi k2.5 stretched": {
        **KIMI,
        "tie_word_embeddings": True,
        "projection_layer_norm_eps": 0.25,
        "text_config": {
            **KIMI["text_config"],
            "rms_norm_eps": 1e-3,
            "norm_topk_prob": False,
            "rope_interleave": False,
        },
        "vision_config": {
            **KIMI["vision_config"],
            "merge_kernel_size": [2, 4],
            "hidden_act": "gelu",
            "pos_emb_height": 3,
            "pos_emb_width": 3,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0},
        },
    },
    "qwen3 vl": QWEN3_VL,
    "qwen3 vl moe": {
        **QWEN3_VL,
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "text_config": {
            **QWEN3_VL["text_config"],
            "model_type": "qwen3_vl_moe_text",
            "num_hidden_layers": 3,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "mlp_only_layers": [1],
        },
        "vision_config": {**QWEN3_VL["vision_config"], "model_type": "qwen3_vl_moe_vision"},
    },
    "qwen3 vl tied": {
        **QWEN3_VL,
        "tie_word_embeddings": True,
        "text_config": {
            **PLAIN,
            "model_type": "qwen3_vl_text",
            "attention_bias": True,
            "hidden_act": "gelu",
        },
        "vision_config": {
            **QWEN3_VL["vision_config"],
            "in_channels": 2,
            "temporal_patch_size": 1,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [1],
            "hidden_act": "silu",
            "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0},
        },
    },
    "gemma4 of images": GEMMA4_IMAGES,
    "gemma4 of images, causal": {
        **GEMMA4_IMAGES,
        "tie_word_embeddings": False,
        "text_config": {
            **GEMMA4_IMAGES["text_config"],
            "tie_word_embeddings": False,
            "use_bidirectional_attention": None,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 12,
            "hidden_size": 34,
        },
        "vision_config": {
            **GEMMA4_IMAGES["vision_config"],
            "standardize": False,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 5.0},
        },
    },
    "minimax m3": MINIMAX_M3,
    "minimax m3 as published": {
        **MINIMAX_M3,
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": True,
        "tie_word_embeddings": True,
        "text_config": {
            **{
                key: value
                for key, value in MINIMAX_M3_TEXT.items()
                if not key.endswith("_types") and key != "rope_parameters"
            },
            "num_hidden_layers": 3,
            "hidden_act": "swigluoai",
            "moe_layer_freq": [0, 1, 1],
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_attention_freq": [0, 0, 1],
                "sparse_num_index_heads": 4,
                "sparse_index_dim": 10,
                "sparse_topk_blocks": 2,
                "sparse_block_size": 3,
                "sparse_local_block": 0,
                "sparse_init_block": 0,
                "sparse_score_type": "max",
                "sparse_disable_index_value": [0, 0, 1],
            },
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "use_gemma_norm": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_head",
            "use_routing_bias": True,
            "rope_theta": 50,
            "partial_rotary_factor": 0.75,
            "rotary_dim": 6,
            "rms_norm_eps": 1e-3,
            "swiglu_alpha": 0.75,
            "routed_scaling_factor": 1.5,
        },
        "vision_config": {
            **MINIMAX_M3["vision_config"],
            "rope_mode": "3d",
            "rope_theta": 50.0,
            "hidden_act": "quick_gelu",
            "layer_norm_eps": 1e-3,
            "num_channels": 2,
            "temporal_patch_size": 1,
            "img_token_compression_config": {
                "image_token_compression_method": "patch_merge",
                "spatial_merge_size": 2,
            },
        },
    },
}
