"""Sizes that most small configurations share."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

PLAIN: Config = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "vocab_size": 19,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
ALIKE: Config = {
    key: value for key, value in PLAIN.items() if key not in ("num_key_value_heads", "head_dim")
}
"""Of families whose heads all have keys of their own, as wide as their share of the stream."""
