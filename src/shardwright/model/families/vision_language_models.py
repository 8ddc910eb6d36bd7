"""Builders of vision-language models: LLaVA, Qwen3-VL, Qwen3.5, Gemma 4, Kimi-K2.5, MiniMax-M3.

The language model is read from ``text_config`` by the builder of its own architecture. A
configuration without ``vision_config`` describes the language model alone, and that is what is
built.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import Final

from shardwright.model.blocks.deepstack import with_deepstack
from shardwright.model.blocks.pooled_projector import pooled_operators
from shardwright.model.blocks.vision_tower_and_projector import (
    ProjectorShape,
    VisionShape,
    projector_operators,
    with_vision_tower,
)
from shardwright.model.families.decoders.gemma4 import with_image_attention
from shardwright.model.families.fields.vision_language_sections import (
    MAX_POSITIONS,
    read_vision_tower,
    text_fields,
    tied_text_fields,
)
from shardwright.model.families.huggingface_config import build_architecture
from shardwright.model.families.images.kimi_tower_settings import (
    merged_patch_sides,
    position_table_shape,
)
from shardwright.model.families.images.llava_tower_settings import STRATEGIES
from shardwright.model.families.images.minimax_tower_settings import merge_sizes
from shardwright.model.families.images.tower_reader_interface_and_shared_fields import MAX_PATCH
from shardwright.model.ir.block import INPUT
from shardwright.model.ir.config_json_field_access import (
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    Fields,
    value_text,
)
from shardwright.model.ir.model_graph import Model

QWEN_DEEP: Final = (8, 16, 24)
"""Qwen3-VL's default tower layers for DeepStack features."""
LLAVA_TEXTS: Final = ("llama", "mistral", "qwen2")


def build_llava(fields: Fields) -> Model:
    """Build LLaVA 1.5 from its config (`LlavaConfig`): a CLIP tower and two linear layers.

    The features are the tower's at layer ``vision_feature_layer``.

    Only the layers up to that layer run; later stored layers are left out (they have no gradient
    and no use).
    """
    text, vision = tied_text_fields(fields), fields.section("vision_config")
    kind = text.string("model_type")
    if kind not in LLAVA_TEXTS:
        text.fail(
            f"text_config.model_type = {kind[:40]!r} is not supported",
            hint=f"supported: {', '.join(LLAVA_TEXTS)}",
        )
    if vision.string("model_type") != "clip_vision_model":
        vision.unsupported("vision_config.model_type other than clip_vision_model")
    vision.mark_read(
        "projection_dim", "vocab_size"
    )  # of the space that CLIP shares with its own text
    patch, size = (
        vision.integer("patch_size", maximum=MAX_PATCH),
        vision.integer("image_size", maximum=MAX_POSITIONS),
    )
    channels = vision.integer("num_channels", default=3, maximum=64)
    shape = read_vision_tower(
        vision,
        patch_elements=channels * patch**2,
        position_rows=(size // patch) ** 2 + 1,
        class_token=True,
        norm_before=True,
    )
    layers = shape.layers
    fields.choice("vision_feature_select_strategy", allowed=STRATEGIES, default=STRATEGIES[0])
    feature = fields.integer(
        "vision_feature_layer", minimum=-MAX_LAYERS, maximum=MAX_LAYERS, default=-2
    )
    used = layers + 1 + feature if feature < 0 else feature
    if not 1 <= used <= layers:
        fields.fail(
            f"vision_feature_layer = {feature} is not a layer of the {layers}",
            hint="count from -1 backwards",
        )
    language = build_architecture(kind, text)
    two = ProjectorShape(
        inner=language.hidden, bias=fields.flag("multimodal_projector_bias", default=True)
    )
    projector = projector_operators(two, width=shape.hidden, hidden=language.hidden, source=INPUT)
    return with_vision_tower(language, vision=replace(shape, layers=used), projector=projector)


def _with_qwen_tower(fields: Fields, language: Model, *, deep: tuple[int, ...] = ()) -> Model:
    """Put Qwen3-VL's tower, if any, before a language model; `deep`: default DeepStack layers.

    `deep`: default tower layers for DeepStack.
    """
    vision = fields.optional_section("vision_config")
    if vision is None:
        return language
    merge = vision.integer("spatial_merge_size", maximum=64) ** 2
    pixels = vision.integer("patch_size", maximum=MAX_PATCH) ** 2 * vision.integer(
        "temporal_patch_size", maximum=64
    )
    out = vision.integer("out_hidden_size", maximum=MAX_HIDDEN)
    if out != language.hidden:
        vision.fail(
            f"{vision.path}out_hidden_size = {out} is not the language model's {language.hidden}",
            hint="make them equal",
        )
    patch, rows = (
        vision.integer("in_channels", maximum=64) * pixels,
        vision.integer("num_position_embeddings", maximum=MAX_POSITIONS),
    )
    shape = read_vision_tower(
        vision,
        patch_elements=patch,
        position_rows=rows,
        layers_field="depth",
        heads_field="num_heads",
        patch_bias=True,
        rotary=True,
    )
    hidden, wide = shape.hidden, shape.hidden * merge
    projector, merger = (
        projector_operators(
            ProjectorShape(inner=wide, norm=norm),
            width=hidden,
            hidden=out,
            source=INPUT,
            merge=merge,
        )
        for norm in (hidden, wide)
    )
    joined = with_vision_tower(language, vision=shape, projector=projector)
    return with_deepstack(
        joined, merger=merger, after=_deepstack_layers(vision, shape, language, usual=deep)
    )


def _deepstack_layers(
    vision: Fields, shape: VisionShape, language: Model, *, usual: tuple[int, ...]
) -> tuple[int, ...]:
    """Indices from 0 of tower layers whose features first language layers add; default `usual`."""
    name = "deepstack_visual_indexes"
    deep = vision.integers(name, maximum=MAX_LAYERS) if vision.present(name) else usual
    layers = sum(run.count for run in language.runs if run.name.startswith("layers"))
    if (
        any(a >= b for a, b in pairwise(deep))
        or any(layer >= shape.layers for layer in deep)
        or len(deep) > layers
    ):
        hint = (
            f"list numbers that count up below {shape.layers}, one for each of the first language"
            " layers at most"
        )
        vision.fail(
            f"{vision.path}{name} = {value_text(deep)} are not layers of the tower", hint=hint
        )
    return deep


def build_qwen3_vl(fields: Fields) -> Model:
    """Build Qwen3-VL with a dense language model from its config."""
    return _with_qwen_tower(
        fields, build_architecture("Qwen3ForCausalLM", _qwen_text(fields)), deep=QWEN_DEEP
    )


def build_qwen3_vl_moe(fields: Fields) -> Model:
    """Build Qwen3-VL with experts from its config."""
    return _with_qwen_tower(
        fields, build_architecture("Qwen3MoeForCausalLM", _qwen_text(fields)), deep=QWEN_DEEP
    )


def _qwen_text(fields: Fields) -> Fields:
    """Language-model fields of Qwen3-VL; only the top level decides whether the head is tied."""
    text = fields.section("text_config")
    text.mark_read("tie_word_embeddings")
    return text.replaced("tie_word_embeddings", fields.flag("tie_word_embeddings", default=False))


def build_qwen3_5_vl(fields: Fields) -> Model:
    """Build dense Qwen3.5 or 3.6 with its image tower from its config."""
    return _with_qwen_tower(fields, build_architecture("Qwen3_5ForCausalLM", text_fields(fields)))


def build_qwen3_5_moe_vl(fields: Fields) -> Model:
    """Build Qwen3.5 or 3.6 with experts and its image tower from its config."""
    return _with_qwen_tower(
        fields, build_architecture("Qwen3_5MoeForCausalLM", text_fields(fields))
    )


def build_gemma4_vl(fields: Fields) -> Model:
    """Build Gemma 4 with its image tower from its config: pooled patches, one projection.

    Tokens of one image attend to each other if ``use_bidirectional_attention`` of the text is
    ``vision``.
    """
    if fields.present("audio_config"):
        fields.unsupported(
            "audio_config (an audio tower)", hint="set audio_config to null to plan text and image"
        )
    # Its class ties by the top level alone.
    text = fields.section("text_config").replaced(
        "tie_word_embeddings", fields.flag("tie_word_embeddings", default=True)
    )
    language, vision = (
        build_architecture("Gemma4ForCausalLM", text),
        fields.optional_section("vision_config"),
    )
    if vision is None:
        return language
    rows = 2 * vision.integer("position_embedding_size", maximum=MAX_POSITIONS)
    patch = 3 * vision.integer("patch_size", maximum=MAX_PATCH) ** 2
    normed = read_vision_tower(
        vision,
        patch_elements=patch,
        position_rows=rows,
        qk_norm=True,
        value_norm=True,
        post_norms=True,
        norm_bias=False,
    )
    shape = replace(normed, bias=False, gated=True, rotary=True)
    hidden, heads = shape.hidden, shape.heads
    if hidden // heads % 4:
        vision.unsupported(
            f"heads of {hidden // heads} elements, of which no half turns by rows and half by"
            " columns"
        )
    if (
        vision.integer("num_key_value_heads", default=heads, maximum=MAX_HEADS) != heads
        or vision.integer("head_dim") * heads != hidden
    ):
        vision.unsupported(
            "num_key_value_heads or head_dim of vision_config other than those of plain attention"
        )
    vision.mark_read("attention_bias")  # its products have none
    merge, standard = (
        vision.integer("pooling_kernel_size", maximum=64, default=3) ** 2,
        vision.flag("standardize", default=False),
    )
    projector = pooled_operators(
        width=hidden,
        hidden=language.hidden,
        source=INPUT,
        merge=merge,
        mean_factor=sqrt(hidden),
        shift_and_scale=standard,
    )
    return with_vision_tower(
        with_image_attention(language, text), vision=shape, projector=projector
    )


def build_kimi_k25(fields: Fields) -> Model:
    """Build Kimi-K2.5 to K2.7 from its config: Kimi-K2 after a MoonViT tower with merged patches.

    Images are single frames, so that how frames are placed and averaged changes nothing.
    """
    text = text_fields(fields).replaced(
        "tie_word_embeddings", fields.flag("tie_word_embeddings", default=True)
    )
    language, vision = (
        build_architecture("DeepseekV3ForCausalLM", text),
        fields.optional_section("vision_config"),
    )
    if vision is None:
        return language
    vision.choice("mm_projector_type", allowed=("patchmerger",), default="patchmerger")
    vision.choice("merge_type", allowed=("sd2_tpool",), default="sd2_tpool")
    vision.choice("pos_emb_type", allowed=("divided_fixed",), default="divided_fixed")
    vision.mark_read("init_pos_emb_time", "pos_emb_time", "video_attn_type")
    (rows, columns), block = position_table_shape(vision), merged_patch_sides(vision)
    patch = 3 * vision.integer("patch_size", maximum=MAX_PATCH) ** 2
    shape = read_vision_tower(
        vision,
        patch_elements=patch,
        position_rows=rows * columns,
        prefix="vt_",
        rotary=True,
        patch_bias=True,
        norm_after=True,
    )
    hidden, merge = shape.hidden, block[0] * block[1]
    if hidden // shape.heads % 4:
        vision.unsupported(
            f"heads of {hidden // shape.heads} elements, of which no half turns by rows and half by"
            " columns"
        )
    for one, name, expected in (
        (fields, "projection_hidden_size", hidden),
        (vision, "mm_hidden_size", hidden),
        (vision, "text_hidden_size", language.hidden),
    ):
        if one.integer(name, maximum=MAX_HIDDEN, default=expected) != expected:
            one.fail(
                f"{one.path}{name} is not {expected}, as wide as what it is of",
                hint="make them equal",
            )
    two = ProjectorShape(inner=hidden * merge, norm=hidden)
    projector = projector_operators(
        two, width=hidden, hidden=language.hidden, source=INPUT, merge=merge
    )
    return with_vision_tower(language, vision=shape, projector=projector)


def build_minimax_m3_vl(fields: Fields) -> Model:
    """Build MiniMax-M3 with its image tower: two layers a patch, two more on merged patches."""
    text = tied_text_fields(fields)
    language, vision = (
        build_architecture("MiniMaxM3ForCausalLM", text),
        fields.optional_section("vision_config"),
    )
    # The last layer's features, without a class token; what follows from other sizes.
    fields.mark_read("vision_feature_layer", "vision_feature_select_strategy", "merged_hidden_size")
    if vision is None:
        return language
    vision.mark_read(
        "image_size", "projection_dim", "vocab_size"
    )  # positions are rotary; of a space shared with a text of its own
    side, frames = merge_sizes(vision)
    pixels, merge = vision.integer("patch_size", maximum=MAX_PATCH) ** 2, side**2
    shape = read_vision_tower(
        vision,
        patch_elements=vision.integer("num_channels", default=3, maximum=64) * frames * pixels,
        norm_before=True,
        rotary=True,
    )
    inner = fields.integer("projector_hidden_size", maximum=MAX_HIDDEN)
    two = ProjectorShape(inner=inner, bias=fields.flag("multimodal_projector_bias", default=True))
    each = projector_operators(two, width=shape.hidden, hidden=language.hidden, source=INPUT)
    merged = projector_operators(
        two,
        width=language.hidden,
        hidden=language.hidden,
        source=each[-1].name,
        merge=merge,
        prefix="merge.",
    )
    return with_vision_tower(language, vision=shape, projector=(*each, *merged))


def build_llama4(fields: Fields) -> Model:
    """Build Llama 4's language model; a configuration with ``vision_config`` is refused."""
    if fields.present("vision_config"):
        fields.unsupported(
            "vision_config of Llama 4", hint="remove vision_config to plan the language model alone"
        )
    return build_architecture("Llama4ForCausalLM", text_fields(fields))
