"""The record of a published model in the catalog, and helpers to write one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.lazily_compiled_dataclass import dataclass

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
    """Make a catalog entry; `names` separates the model's names by spaces, first the short name."""
    return CatalogEntry(
        names=tuple(names.split()), config=config, parameters=round(parameters), source=source
    )


def sizes(
    layers: int, hidden: int, heads: int, kv_heads: int, vocab: int, context: int, **more: Any
) -> dict[str, Any]:
    """Llama's configuration fields for a decoder's sizes, together with the fields `more`."""
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
    """Configuration with this architecture and the fields of `sizes` for `counts` and `more`."""
    return {"architectures": [architecture], **sizes(*counts, **more)}
