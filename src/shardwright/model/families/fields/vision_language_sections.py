"""Fields of the text and vision sections of a vision-language model's config.json."""

from __future__ import annotations

from typing import Any, Final

from shardwright.model.blocks.vision_tower_and_projector import (
    VisionShape,
)
from shardwright.model.ir.config_json_field_access import (
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    Fields,
)

MAX_POSITIONS: Final = 2**24


def text_fields(fields: Fields) -> Fields:
    """Fields of ``text_config``, with the top level's ``tie_word_embeddings`` if it has none."""
    section = fields.section("text_config")
    _, top = fields.find("tie_word_embeddings")
    return (
        section
        if top is None or section.present("tie_word_embeddings")
        else section.replaced("tie_word_embeddings", top)
    )


def tied_text_fields(fields: Fields) -> Fields:
    """Fields of ``text_config``, tied if the section or the top level says so."""
    text = fields.section("text_config")
    tied = [one.flag("tie_word_embeddings", default=False) for one in (fields, text)]
    return text.replaced("tie_word_embeddings", any(tied))


def read_vision_tower(
    vision: Fields,
    *,
    patch_elements: int,
    position_rows: int = 0,
    layers_field: str = "",
    heads_field: str = "",
    prefix: str = "",
    **more: Any,
) -> VisionShape:
    """Read a vision transformer's sizes from its section; its heads must divide its width.

    Args:
        patch_elements: input elements of a patch.
        position_rows: rows of the table of learned positions.
        layers_field, heads_field: names of the fields with these numbers, if not the usual names.
        prefix: optional prefix of the usual fields.
        more: further fields of the shape.
    """

    def spelled(name: str) -> tuple[str, ...]:
        """The spellings of a field name: with the prefix, if any, and without."""
        return tuple(dict.fromkeys((f"{prefix}{name}", name)))

    hidden = vision.integer(*spelled("hidden_size"), maximum=MAX_HIDDEN)
    count = vision.integer(
        *((heads_field,) if heads_field else spelled("num_attention_heads")), maximum=MAX_HEADS
    )
    if hidden % count:
        vision.fail(
            f"{vision.path}{prefix}hidden_size = {hidden} is not a multiple of its {count} heads",
            hint="choose a divisor",
        )
    return VisionShape(
        layers=vision.integer(
            *((layers_field,) if layers_field else spelled("num_hidden_layers")), maximum=MAX_LAYERS
        ),
        hidden=hidden,
        heads=count,
        ffn=vision.integer(*spelled("intermediate_size"), maximum=MAX_FFN),
        patch=patch_elements,
        rows=position_rows,
        **more,
    )
