"""Published checkpoints: which a word means, and what they are on devices without four-bit
units."""

from __future__ import annotations

import pytest

from shardwright.job.number_formats_of_published_checkpoints import (
    CHECKPOINTS,
    find_checkpoint,
    plain_precision,
)
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.model.catalog.load_model_by_name import catalog_entry


def test_every_model_is_of_the_catalog_under_its_first_name() -> None:
    for one in CHECKPOINTS:
        assert one.source
        for model in one.models:
            assert catalog_entry(model).names[0] == model
        assert all(name == name.lower() for name in one.names)


def test_a_word_means_one_checkpoint_of_a_model() -> None:
    said = [(model, word) for one in CHECKPOINTS for model in one.models for word in one.words]
    assert len(said) == len(set(said))


def test_names_win_over_words() -> None:
    usual = find_checkpoint("deepseek-r1", number_format="fp4")
    named = find_checkpoint("deepseek-r1", number_format="fp4", name="nvidia/DeepSeek-R1-FP4")
    assert usual is not None
    assert named is not None
    assert (usual.precision.output, named.precision.output) == (usual.precision.experts, None)
    assert (usual.precision.kv, named.precision.kv) == (NumberFormat.FP8, NumberFormat.BF16)
    assert find_checkpoint("llama-7b", number_format="fp4") is None


@pytest.mark.parametrize(
    ("units", "activations"), [(True, NumberFormat.NVFP4), (False, NumberFormat.BF16)]
)
def test_devices_without_four_bit_units_unpack_weights(
    units: bool, activations: NumberFormat
) -> None:
    found = find_checkpoint("llama-3.3-70b", number_format="fp4")
    assert found is not None
    formats = found.formats(fp4_units=units)
    assert (formats.mlp.weights, formats.mlp.activations) == (NumberFormat.NVFP4, activations)


def test_plain_words() -> None:
    assert plain_precision("int4") is None
    fp8, fp16 = plain_precision("fp8"), plain_precision("fp16")
    assert fp8 is not None
    assert fp16 is not None
    assert (fp8.mlp.weights, fp8.head.weights, fp16.kv) == (
        NumberFormat.FP8,
        NumberFormat.BF16,
        NumberFormat.FP16,
    )
