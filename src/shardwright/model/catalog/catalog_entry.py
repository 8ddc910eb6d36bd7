"""The form of a catalog entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.lazy_dataclass import dataclass

CARD: Final = "config.json and weights index of the model's repository, from memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A published model.

    Args:
        names: the usual short name, then other spellings (lower case, hyphens).
        config: its hyper-parameters in the form of a Hugging Face configuration.
        parameters: published number of parameters in elements.
        source: where the hyper-parameters and the count were published, and whether they were
            written from memory.
    """

    names: tuple[str, ...]
    config: Mapping[str, Any]
    parameters: int
    source: str


def entry(
    names: str, config: Mapping[str, Any], parameters: float, source: str = CARD
) -> CatalogEntry:
    """An entry whose names stand in one text with spaces between."""
    return CatalogEntry(
        names=tuple(names.split()), config=config, parameters=round(parameters), source=source
    )


def sizes(
    layers: int, hidden: int, heads: int, kv_heads: int, vocab: int, context: int, **more: Any
) -> dict[str, Any]:
    """The sizes of a decoder in Llama's spelling;
    `more` are further fields as written in the file.
    """
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        **more,
    }


def decoder(architecture: str, *counts: int, **more: Any) -> dict[str, Any]:
    """A configuration of that architecture with `sizes`."""
    return {"architectures": [architecture], **sizes(*counts, **more)}
