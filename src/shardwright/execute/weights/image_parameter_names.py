"""Names of the parameters of families with images in a Hugging Face checkpoint: a tower, a
projector and a text model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardwright.execute.weights.layer_parameter_names import (
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
    Family,
    Rule,
    Stack,
    linear,
    norm,
    renamed,
    stored_less_one,
)

OF_IMAGES: Final[Mapping[str, Family]] = {
    "Gemma4ForConditionalGeneration": Family(
        name="Gemma4ForConditionalGeneration",
        outer=renamed(OUTER, "model.", "model.language_model."),
        layers=GEMMA4,
        stem="model.language_model.layers.{layer}.",
        stacks={
            "vision_embed": Stack(
                rules={
                    **linear("patch", "input_proj"),
                    "patch.positions": Rule(tensor="position_embedding_table", gridded=True),
                },
                stem="model.vision_tower.patch_embedder.",
            ),
            "vision": Stack(rules=GEMMA4_TOWER, stem="model.vision_tower.encoder.layers.{layer}."),
            "projector": Stack(rules=GEMMA4_PROJECTOR, stem="model."),
        },
    ),
    "LlavaForConditionalGeneration": Family(
        name="LlavaForConditionalGeneration",
        outer=renamed(OUTER, "", "language_model."),
        layers=LLAMA,
        stem="language_model.model.layers.{layer}.",
        base="vision_tower.vision_model.",
        instead="vision_tower.",
        stacks={
            "vision_embed": Stack(rules=CLIP_EMBED, stem="vision_tower.vision_model."),
            "vision": Stack(rules=CLIP, stem="vision_tower.vision_model.encoder.layers.{layer}."),
            "projector": Stack(
                rules={**linear("up", "linear_1"), **linear("down", "linear_2")},
                stem="multi_modal_projector.",
            ),
        },
    ),
    "KimiK25ForConditionalGeneration": Family(
        name="KimiK25ForConditionalGeneration",
        outer=renamed(OUTER, "", "language_model."),
        layers=LATENT,
        predictors=PREDICTOR,
        stem="language_model.model.layers.{layer}.",
        stacks={
            "vision_embed": Stack(rules=MOON_EMBED, stem="vision_tower.patch_embed."),
            "vision": Stack(rules=MOON, stem="vision_tower.encoder.blocks.{layer}."),
            "projector": Stack(
                rules={
                    **norm("vision_norm", "vision_tower.encoder.final_layernorm"),
                    **norm("norm", "mm_projector.pre_norm"),
                    **linear("up", "mm_projector.proj.0"),
                    **linear("down", "mm_projector.proj.2"),
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
        architecture: Family(
            name=architecture,
            outer=renamed(OUTER, "model.", "model.language_model."),
            layers=layers,
            stem="model.language_model.layers.{layer}.",
            stacks={
                "vision_embed": Stack(rules=QWEN_EMBED, stem="model.visual."),
                "vision": Stack(rules=QWEN_VISION, stem="model.visual.blocks.{layer}."),
                "deep": Stack(
                    rules=QWEN_MERGER, stem="model.visual.deepstack_merger_list.{layer}."
                ),
                "projector": Stack(rules=QWEN_MERGER, stem="model.visual.merger."),
            },
        )
        for architecture, layers in (
            ("Qwen3VLForConditionalGeneration", LLAMA),
            (
                "Qwen3VLMoeForConditionalGeneration",
                {**LLAMA, **QWEN_EXPERTS, **linear("router", "mlp.gate")},
            ),
        )
    },
    "MiniMaxM3SparseForConditionalGeneration": Family(
        name="MiniMaxM3SparseForConditionalGeneration",
        outer=renamed(stored_less_one(OUTER), "", "language_model."),
        layers=stored_less_one(M3),
        stem="language_model.model.layers.{layer}.",
        stacks={
            "vision_embed": Stack(rules=CLIP_EMBED, stem="vision_tower.vision_model."),
            "vision": Stack(rules=CLIP, stem="vision_tower.vision_model.encoder.layers.{layer}."),
            "projector": Stack(rules=M3_PROJECTOR),
        },
    ),
}
"""By architecture."""
