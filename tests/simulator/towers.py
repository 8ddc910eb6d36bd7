"""Models of two chains of layers, whose streams differ: a vision tower before a language model, an
encoder before a decoder."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any, Final

from shardwright.hardware.cluster import FabricTier
from shardwright.job.training_job import SequenceLength
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.program.small import cluster_of, is_legal, problem_of, random_grid

_TEXT: Final = {"vocab_size": 8000, "max_position_embeddings": 8192}
_DENSE: Final = {
    **_TEXT,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 2048,
}
_QWEN: Final = {
    "depth": 6,
    "hidden_size": 512,
    "num_heads": 8,
    "intermediate_size": 1024,
    "in_channels": 3,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 1024,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [1, 3],
}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "llava": {
        "architectures": ["LlavaForConditionalGeneration"],
        "vision_feature_layer": -1,
        "text_config": {**_DENSE, "model_type": "llama", "num_hidden_layers": 7},
        "vision_config": {
            "model_type": "clip_vision_model",
            "num_hidden_layers": 5,
            "hidden_size": 256,
            "num_attention_heads": 8,
            "intermediate_size": 512,
            "image_size": 56,
            "patch_size": 14,
        },
    },
    "qwen3-vl": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": {**_DENSE, "num_hidden_layers": 5, "head_dim": 64},
        "vision_config": _QWEN,
    },
    "qwen3-vl-moe": {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "text_config": {
            **_DENSE,
            "num_hidden_layers": 5,
            "head_dim": 64,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
        },
        "vision_config": _QWEN,
    },
    "gemma4": {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": {
            **_DENSE,
            "num_hidden_layers": 6,
            "head_dim": 64,
            "global_head_dim": 128,
            "num_global_key_value_heads": 4,
            "attention_k_eq_v": True,
            "enable_moe_block": False,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "sliding_window": 128,
            "vocab_size_per_layer_input": 8000,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        },
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 1536,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 96,
            "intermediate_size": 512,
            "num_hidden_layers": 5,
            "patch_size": 16,
            "position_embedding_size": 16,
            "pooling_kernel_size": 2,
        },
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 1024,
        "num_heads": 16,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_decoder_layers": 5,
        "vocab_size": 8000,
    },
}
"""Towers with a wider stream than the text's (Gemma's) and with narrower ones; their images have
fewer and more tokens than the text."""


@cache
def tower_model(name: str, *, training: str = "") -> Model:
    """One of `CONFIGS`, all of it trained or as the text says."""
    return trained(model_from_config(CONFIGS[name], name=name), training)


def drawn_tower(
    draw: random.Random, runtimes: tuple[Runtime, ...], *, schedules: tuple[str, ...]
) -> tuple[Problem, Grid]:
    """A legal grid of some pipeline ranks for one of the models, under one of the runtimes."""
    while True:
        name = draw.choice(tuple(CONFIGS))
        still = "frozen:encoder_embed,encoder" if name == "t5" else "frozen:vision_embed,vision"
        model = tower_model(name, training=draw.choice(("", "", still, "frozen:embed")))
        grid = random_grid(draw, experts=name == "qwen3-vl-moe", schedules=schedules)
        node = draw.choice((2, 4, 8))
        if grid.pp == 1 or grid.devices % node:
            continue
        fabric = draw.choice(
            (
                (),
                (
                    FabricTier(name="leaf", num_devices=2 * node),
                    FabricTier(name="spine", num_devices=0, oversubscription=4.0),
                ),
            )
        )
        problem = problem_of(
            model,
            cluster_of(
                grid.devices,
                node=node,
                fabric=fabric,
                accelerator=draw.choice(("h100-sxm", "l40s")),
            ),
            runtime=draw.choice(runtimes),
            global_batch=grid.dp * grid.microbatch * draw.choice((1, 2, 6, 12)),
            seq_len=draw.choice((256, 4096)),
        )
        beside = "encoder" if name == "t5" else "image"
        sequences = (
            *problem.job.sequences,
            SequenceLength(name=beside, tokens=draw.choice((64, 256, 4096))),
        )
        problem = replace(problem, job=replace(problem.job, sequences=sequences))
        if is_legal(problem, grid):
            return problem, grid
