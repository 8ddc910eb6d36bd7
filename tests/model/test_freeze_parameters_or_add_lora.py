"""Adapters and frozen parameters: what the words mean, and what of a model they change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import UsageError
from shardwright.model.blocks.multi_token_prediction import num_predictors_of
from shardwright.model.catalog.load_model_by_name import ENTRIES, load_model
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.freeze_parameters_or_add_lora import (
    ADAPTED,
    TrainedParts,
    parse_training,
    trained,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import ParameterClass
from tests.tiers import examples

LLAMA, MIXTRAL = load_model("llama-3-8b"), load_model("mixtral-8x7b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", TrainedParts()),
        ("all", TrainedParts()),
        ("lora:r16", TrainedParts(rank=16, adapted=ADAPTED)),
        ("lora:r8:attn,mlp", TrainedParts(rank=8, adapted=("attn", "mlp"))),
        ("frozen:embed", TrainedParts(frozen=("embed",))),
        ("lora:r4:qkv frozen:layer", TrainedParts(rank=4, adapted=("qkv",), frozen=("layer",))),
        ("without:mtp frozen:embed", TrainedParts(frozen=("embed",), whole=False)),
    ],
)
def test_words(text: str, said: TrainedParts) -> None:
    assert parse_training(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lora", "is an unknown value"),
        ("lora:16", "is an unknown value"),
        ("lora:r0", "rank 0"),
        ("lora:r99999", "rank 99999"),
        ("lora:r4 lora:r8", "is repeated"),
        ("frozen:", "is an unknown value"),
        ("qlora:r4", "is an unknown value"),
        ("lora:r4:q", "no 'q'"),
        ("frozen:vision", "no 'vision'"),
        ("without:", "is an unknown value"),
        ("without:head", "is an unknown value"),
        ("without:mtp without:mtp", "is repeated"),
        ("without:mtp", "no prediction modules"),
        ("frozen:embed,head,layer", "nothing to train"),
    ],
)
def test_words_that_mean_nothing_here_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        trained(LLAMA, text)
    assert caught.value.hint


@pytest.mark.parametrize("depth", [1, 2])
def test_without_prediction_modules_it_is_the_model_whose_configuration_has_none(
    depth: int,
) -> None:
    config = next(entry.config for entry in ENTRIES if entry.names[0] == "deepseek-v3")
    model, plain = (
        model_from_config({**config, "num_nextn_predict_layers": n}, name="m") for n in (depth, 0)
    )
    assert num_predictors_of(model) == depth
    assert trained(model, "without:mtp") == plain
    assert trained(model, "without:mtp frozen:embed") == trained(plain, "frozen:embed")


def test_a_table_of_a_stack_is_frozen_where_its_embedding_run_is() -> None:
    """And with it what its layers read; the words' table is the decoder's too, and is trained."""
    model = trained(load_model("t5-11b"), "frozen:encoder_embed")
    of = {
        f"{b.name}.{p.name}": p.trainable
        for b in model.blocks
        for o in b.operators
        for p in o.parameters
    }
    tables = (
        "encoder_embed.position_bias",
        "encoder.core.distances",
        "embed.position_bias",
        "decoder.core.distances",
    )
    assert [of[name] for name in (*tables, "encoder_embed.embed.weight")] == [
        False,
        False,
        True,
        True,
        True,
    ]


def outcome(text: str) -> Model | UsageError:
    try:
        return trained(LLAMA, text)
    except UsageError as error:
        return error


@examples(30, 1000)
@given(st.text("lorafzen:r1234567890,attn mlp", max_size=30))
def test_any_words_train_something_or_are_refused(text: str) -> None:
    result = outcome(text)
    if isinstance(result, UsageError):
        assert "\n" not in str(result)
    else:
        assert 0 < result.num_trainable_parameters <= result.num_parameters


def test_adapters_of_llama_have_the_sizes_of_the_paper() -> None:
    """r x (in + out) for each product; q, k, v share one A, and so do gate and up."""
    hidden, heads, kv, ffn, r, layers = 4096, 4096, 1024, 14336, 16, 32
    own = r * ((hidden + heads + 2 * kv) + (heads + hidden) + (hidden + 2 * ffn) + (ffn + hidden))
    model = trained(LLAMA, "lora:r16")
    assert model.num_trainable_parameters == layers * own
    assert model.num_parameters == LLAMA.num_parameters + layers * own
    assert model.base is LLAMA
    assert trained(LLAMA, "all") is LLAMA


def test_adapters_of_experts_are_the_experts() -> None:
    hidden, ffn, experts, r, layers = 4096, 14336, 8, 4, 32
    model = trained(MIXTRAL, "lora:r4:experts")
    assert model.num_trainable_parameters == layers * experts * r * (
        (hidden + 2 * ffn) + (ffn + hidden)
    )
    adapters = [p for b in model.blocks for o in b.operators for p in o.adapters]
    assert {p.klass for p in adapters} == {ParameterClass.EXPERTS}


def test_frozen_products_keep_no_input_and_have_no_gradient() -> None:
    model = trained(LLAMA, "frozen:mlp,embed")
    for block in model.blocks:
        for operator in block.operators:
            gone = operator.klass is OperatorClass.MLP or block.name == "embed"
            assert all(p.trainable is not gone for p in operator.parameters)
            if operator.kind is OperatorKind.LINEAR:
                assert bool(operator.keeps) is not gone
    mlp = 32 * 3 * 4096 * 14336
    assert model.num_trainable_parameters == LLAMA.num_parameters - mlp - 128256 * 4096


def test_a_tied_weight_is_trained_where_its_owner_is() -> None:
    tied = load_model("llama-3.2-1b")

    def of_vocabulary(text: str) -> set[bool]:
        tables = (ParameterClass.EMBED, ParameterClass.HEAD)
        return {
            p.trainable
            for b in trained(tied, text).blocks
            for o in b.operators
            for p in o.parameters
            if p.klass in tables
        }

    assert of_vocabulary("frozen:embed") == {False}
    assert of_vocabulary("frozen:mlp") == {True}
    with pytest.raises(UsageError, match="nothing to train"):
        trained(tied, "frozen:embed,layer,head")
