"""Every class of Transformers builds its token embedding with the padding row that we say."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

from shardwright.errors import ModelError
from shardwright.model.families.family_registry import ARCHITECTURES, REGISTRY
from shardwright.model.families.fields.embedding_padding_row import PADDED
from shardwright.model.families.huggingface_config import model_from_config
from tests.execute.published_families import ALL

ROW = 3
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
LLAMA = next(c for c in ALL.values() if c["architectures"] == ["LlamaForCausalLM"])
OF_OTHER_CODE = {"DeciLMForCausalLM", "MiMoForCausalLM"}
"""Padded by the code that their publishers give; Transformers has no class of them."""


@cache
def published_names() -> dict[str, str]:
    """Architecture -> name of its class in Transformers, where it has one; no class is loaded."""
    found, loadable = {}, set(dir(transformers))
    for target, architecture in ARCHITECTURES.items():
        if "refused" in target:
            continue
        names = [name for name, other in REGISTRY.items() if other == target and name in loadable]
        if names:
            found[architecture] = names[0]
    return found


def embedding_of(published: Any, *, row: int | None) -> Any:
    """The token embedding that a class builds for this ``pad_token_id``, without memory."""
    small = next((c for c in ALL.values() if c["architectures"] == [published.__name__]), None)
    config = (
        published.config_class()
        if small is None
        else published.config_class(**{k: v for k, v in small.items() if k != "architectures"})
    )
    text = config.get_text_config()
    text.pad_token_id = row
    for name in LAYERS:
        if small is None and hasattr(text, name):
            setattr(text, name, 1)
            if getattr(text, "layer_types", None):
                text.layer_types = text.layer_types[:1]
    with torch.device("meta"):
        return published(config).get_input_embeddings()


@pytest.mark.parametrize("architecture", sorted(published_names()))
def test_a_class_pads_as_we_say(architecture: str) -> None:
    published = getattr(transformers, published_names()[architecture])
    default = published.config_class().get_text_config().pad_token_id
    assert embedding_of(published, row=ROW).padding_idx == (ROW if architecture in PADDED else None)
    if architecture in PADDED:
        assert PADDED[architecture] == default


def test_every_padded_architecture_is_one_of_ours() -> None:
    assert set(PADDED) <= set(ARCHITECTURES.values())
    assert set(PADDED) - set(published_names()) == OF_OTHER_CODE


@pytest.mark.parametrize(
    ("written", "row"),
    [
        ({"pad_token_id": 5}, 5),
        ({"pad_token_id": -1}, 18),
        ({"pad_token_id": None}, None),
        ({}, None),
    ],
)
def test_the_row_is_the_one_that_is_written(written: dict[str, Any], row: int | None) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "pad_token_id"}
    assert config["vocab_size"] == 19
    model = model_from_config({**config, **written}, name="small")
    assert model.settings.padding_row == row
    assert not model.differs


def test_a_row_outside_the_vocabulary_is_told() -> None:
    model = model_from_config({**LLAMA, "pad_token_id": 19}, name="small")
    assert model.settings.padding_row is None
    assert model.differs == (
        "pad_token_id 19 outside the vocabulary of 19, which the published class does not take",
    )


def test_a_row_that_is_no_number_is_refused() -> None:
    with pytest.raises(ModelError, match="pad_token_id must be a whole number"):
        model_from_config({**LLAMA, "pad_token_id": "<pad>"}, name="small")


def test_the_language_model_of_a_model_with_images_has_the_row_of_its_own_section() -> None:
    """``pad_token_id`` beside ``text_config`` is of the processor; which class embeds the text,
    ``model_type`` says there."""
    llava = next(c for c in ALL.values() if c["architectures"] == ["LlavaForConditionalGeneration"])
    without = {key: value for key, value in llava["text_config"].items() if key != "pad_token_id"}
    assert (
        model_from_config(
            {**llava, "pad_token_id": 2, "text_config": without}, name="small"
        ).settings.padding_row
        is None
    )
    assert (
        model_from_config(
            {**llava, "text_config": {**without, "pad_token_id": 2}}, name="small"
        ).settings.padding_row
        == 2
    )
