"""What layers of a decoder compute that no other framework's have is said by name."""

from __future__ import annotations

from shardwright.frameworks.export.decoder_view_and_unsupported_layers import (
    decoder_of,
    unsupported_factor_shortfalls,
)
from shardwright.model.families.huggingface_config import model_from_config
from tests.model.test_gemma4 import TEXT


def test_stored_factors_norms_of_values_and_plain_scores_are_said() -> None:
    model = model_from_config(
        {**TEXT, "num_hidden_layers": 1, "layer_types": ["full_attention"]}, name="gemma"
    )
    assert [one.what for one in unsupported_factor_shortfalls(decoder_of(model))] == [
        "factors of the embedding, of the stream or of logits",
        "stored factors of layers",
        "norms of values",
        "scores that are not divided by the root of a head's width",
        "norms that take the mean away without a bias, or other turns in windows",
    ]


def test_a_plain_decoder_has_none() -> None:
    names = ("layer_types", "sliding_window", "hidden_size_per_layer_input")
    config = {name: value for name, value in TEXT.items() if name not in names}
    assert not [
        *unsupported_factor_shortfalls(
            decoder_of(
                model_from_config({**config, "architectures": ["LlamaForCausalLM"]}, name="llama")
            )
        )
    ]
