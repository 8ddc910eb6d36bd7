"""Small models that the zoo's plans and the generated plans are for."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.model.blocks.dense_blocks import decoder_block, embedding_block
from shardwright.model.blocks.dense_transformer_operators import mlp_operators, residual
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import AttentionShape
from tests.strategies import dense_model, expert_model


@lru_cache(maxsize=64)
def dense(*, layers: int = 8, heads: int = 16, kv_heads: int = 8) -> Model:
    """embed, layers, head."""
    return dense_model(layers=layers, heads=heads, kv_heads=kv_heads)


@lru_cache(maxsize=64)
def sparse(*, dense_layers: int = 2, layers: int = 6, predictors: int = 0) -> Model:
    """Dense layers, then layers with routed and shared experts; `predictors`: modules that predict
    further tokens."""
    return expert_model(dense=dense_layers, sparse=layers, predictors=predictors)


@lru_cache(maxsize=8)
def adapted(*, layers: int = 32) -> Model:
    """A frozen decoder with trained adapters on its attention."""
    return trained(dense_model(layers=layers), "lora:r16:qkv")


@lru_cache(maxsize=1)
def encoders_and_llm() -> Model:
    """Two encoders that a language model reads: a DAG with three sources."""
    hidden, shape = 128, AttentionShape(heads=16, kv_heads=16, head_dim=8, value_dim=8)
    base = dense_model()
    projector = Block(
        name="projector", operators=mlp_operators(source=INPUT, hidden=hidden, ffn=256, gated=False)
    )
    blocks = (
        *base.blocks,
        replace(embedding_block(hidden=hidden, vocab=64), name="patch"),
        decoder_block("encoder", hidden=hidden, attention=shape, ffn=256, gated=False),
        projector,
        Block(
            name="merge", operators=(residual("merge", source=INPUT, skip=INPUT, hidden=hidden),)
        ),
    )
    runs = (
        Run(name="patch", block=3, count=1),
        Run(name="vit", block=4, count=24, inputs=("patch",)),
        Run(name="projector", block=5, count=1, inputs=("vit",)),
        Run(name="audio", block=4, count=12),
        Run(name="embed", block=0, count=1),
        Run(name="merge", block=6, count=1, inputs=("projector", "audio", "embed")),
        Run(name="llm", block=1, count=48, inputs=("merge",)),
        Run(name="head", block=2, count=1, inputs=("llm",)),
    )
    return Model(
        name="vlm", architecture="Vlm", blocks=blocks, runs=runs, hidden=hidden, vocab=1000
    )


@lru_cache(maxsize=8)
def encoder_decoder(*, layers: int = 4) -> Model:
    """A T5: encoder_embed, encoder, encoder_norm, embed, decoder, head."""
    config = {
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 128,
        "vocab_size": 1000,
        "num_heads": 8,
        "d_kv": 16,
        "d_ff": 256,
        "num_layers": layers,
    }
    return model_from_config(config, name="small-t5")


@lru_cache(maxsize=8)
def hybrid(*, layers: int = 8) -> Model:
    """A Jamba: Mamba layers, attention in one of four, experts in every second."""
    config = {
        "architectures": ["JambaForCausalLM"],
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 8,
    }
    return model_from_config(config, name="small-jamba")


@lru_cache(maxsize=1)
def vision() -> Model:
    """A LLaVA: vision_embed, vision, projector, embed, layers, head."""
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "vision_feature_layer": -2,
        "vision_config": {
            "model_type": "clip_vision_model",
            "num_hidden_layers": 5,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "image_size": 56,
            "patch_size": 14,
        },
        "text_config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "vocab_size": 1000,
        },
    }
    return model_from_config(config, name="small-llava")
