"""Hugging Face parameter names of model families with images: tower, projector, text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardwright.execute.weights.hugging_face_layer_parameter_names import (
    CLIP,
    CLIP_EMBED,
    GEMMA4,
    GEMMA4_PROJECTOR,
    GEMMA4_TOWER,
    LATENT,
    LLAMA,
    M3,
    M3_PROJECTOR,
    MOON,
    MOON_EMBED,
    OUTER,
    PREDICTOR,
    QWEN_EMBED,
    QWEN_EXPERTS,
    QWEN_MERGER,
    QWEN_VISION,
)
from shardwright.execute.weights.naming_rules import (
    FamilyNames,
    LayerStackNames,
    NamingRule,
    linear_names,
    norm_names,
    renamed,
    stored_less_one,
)

OF_IMAGES: Final[Mapping[str, FamilyNames]] = {
    "Gemma4ForConditionalGeneration": FamilyNames(
        name="Gemma4ForConditionalGeneration",
        outer=renamed(OUTER, "model.", "model.language_model."),
        layers=GEMMA4,
        stem="model.language_model.layers.{layer}.",
        stacks={
            "vision_embed": LayerStackNames(
                rules={
                    **linear_names("patch", "input_proj"),
                    "patch.positions": NamingRule(tensor="position_embedding_table", gridded=True),
                },
                stem="model.vision_tower.patch_embedder.",
            ),
            "vision": LayerStackNames(
                rules=GEMMA4_TOWER, stem="model.vision_tower.encoder.layers.{layer}."
            ),
            "projector": LayerStackNames(rules=GEMMA4_PROJECTOR, stem="model."),
        },
    ),
    "LlavaForConditionalGeneration": FamilyNames(
        name="LlavaForConditionalGeneration",
        outer=renamed(OUTER, "", "language_model."),
        layers=LLAMA,
        stem="language_model.model.layers.{layer}.",
        base="vision_tower.vision_model.",
        instead="vision_tower.",
        stacks={
            "vision_embed": LayerStackNames(rules=CLIP_EMBED, stem="vision_tower.vision_model."),
            "vision": LayerStackNames(
                rules=CLIP, stem="vision_tower.vision_model.encoder.layers.{layer}."
            ),
            "projector": LayerStackNames(
                rules={**linear_names("up", "linear_1"), **linear_names("down", "linear_2")},
                stem="multi_modal_projector.",
            ),
        },
    ),
    "KimiK25ForConditionalGeneration": FamilyNames(
        name="KimiK25ForConditionalGeneration",
        outer=renamed(OUTER, "", "language_model."),
        layers=LATENT,
        predictors=PREDICTOR,
        stem="language_model.model.layers.{layer}.",
        stacks={
            "vision_embed": LayerStackNames(rules=MOON_EMBED, stem="vision_tower.patch_embed."),
            "vision": LayerStackNames(rules=MOON, stem="vision_tower.encoder.blocks.{layer}."),
            "projector": LayerStackNames(
                rules={
                    **norm_names("vision_norm", "vision_tower.encoder.final_layernorm"),
                    **norm_names("norm", "mm_projector.pre_norm"),
                    **linear_names("up", "mm_projector.proj.0"),
                    **linear_names("down", "mm_projector.proj.2"),
                }
            ),
        },
        others={
            "language_model.model.layers.": "language_model.model.blocks.",
            "vision_tower.patch_embed.proj.": "vision_tower.encoder.patch_embed.proj.",
            "mm_projector.pre_norm.": "model.mm_projector.pre_norm.",
        },
    ),
    **{
        architecture: FamilyNames(
            name=architecture,
            outer=renamed(OUTER, "model.", "model.language_model."),
            layers=layers,
            stem="model.language_model.layers.{layer}.",
            stacks={
                "vision_embed": LayerStackNames(rules=QWEN_EMBED, stem="model.visual."),
                "vision": LayerStackNames(rules=QWEN_VISION, stem="model.visual.blocks.{layer}."),
                "deep": LayerStackNames(
                    rules=QWEN_MERGER, stem="model.visual.deepstack_merger_list.{layer}."
                ),
                "projector": LayerStackNames(rules=QWEN_MERGER, stem="model.visual.merger."),
            },
        )
        for architecture, layers in (
            ("Qwen3VLForConditionalGeneration", LLAMA),
            (
                "Qwen3VLMoeForConditionalGeneration",
                {**LLAMA, **QWEN_EXPERTS, **linear_names("router", "mlp.gate")},
            ),
        )
    },
    "MiniMaxM3SparseForConditionalGeneration": FamilyNames(
        name="MiniMaxM3SparseForConditionalGeneration",
        outer=renamed(stored_less_one(OUTER), "", "language_model."),
        layers=stored_less_one(M3),
        stem="language_model.model.layers.{layer}.",
        stacks={
            "vision_embed": LayerStackNames(rules=CLIP_EMBED, stem="vision_tower.vision_model."),
            "vision": LayerStackNames(
                rules=CLIP, stem="vision_tower.vision_model.encoder.layers.{layer}."
            ),
            "projector": LayerStackNames(rules=M3_PROJECTOR),
        },
    ),
}
"""Naming rules of image model families, by architecture."""
