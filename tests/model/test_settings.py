"""Numbers that sizes do not tell: of a configuration, of its family's class where it is silent, and
what is not computed by name."""

from __future__ import annotations

import json
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import ModelError
from shardwright.execute.weights.family_parameter_names import FAMILY_NAMES
from shardwright.model.families.family_registry import REGISTRY
from shardwright.model.families.fields.config_class_defaults import CLASSES
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.numerical_constants import (
    DynamicRotary,
    Longer,
    LongerRotary,
    LongRotary,
    Settings,
    YarnRotary,
)
from tests.configs import LLAMA

CLASS_FIELDS = json.loads((Path(__file__).parent / "class_fields.json").read_text())


def settings(**fields: Any) -> Settings:
    return model_from_config({**LLAMA, **fields}, name="m").settings


def test_a_model_knows_the_numbers_of_its_configuration() -> None:
    longer = {
        "rope_type": "llama3",
        "factor": 8,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "original_max_position_embeddings": 64,
    }
    found = settings(rope_theta=500000.0, rms_norm_eps=1e-5, rope_scaling=longer)
    assert found == Settings(
        rope_base=500000.0,
        eps=1e-5,
        longer=LongerRotary(factor=8.0, trained=64.0, low=1.0, high=4.0),
    )
    assert settings(rope_parameters={"rope_type": "default", "rope_theta": 7.0}).rope_base == 7.0
    assert settings() == Settings(rope_base=10000.0, eps=1e-6)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
PHI3 = {**LLAMA, "architectures": ["Phi3ForCausalLM"]}


@pytest.mark.parametrize(
    ("fields", "longer"),
    [
        ({"rope_scaling": YARN}, YarnRotary(factor=4.0, trained=32.0, scale=0.1 * log(4) + 1)),
        (
            {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 32}},
            YarnRotary(factor=4.0, trained=32.0, scale=0.1 * log(4) + 1),
        ),
        (
            {"rope_parameters": {**YARN, "truncate": False, "beta_fast": 8}},
            YarnRotary(factor=4.0, trained=32.0, fast=8.0, scale=0.1 * log(4) + 1, whole=False),
        ),
        (
            {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
            YarnRotary(factor=4.0, trained=32.0),
        ),
        (
            {"rope_scaling": {**YARN, "attention_factor": 1.5}},
            YarnRotary(factor=4.0, trained=32.0, scale=1.5),
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            DynamicRotary(factor=2.0, trained=128.0),
        ),
    ],
)
def test_positions_that_were_made_longer_are_read(fields: dict[str, Any], longer: Longer) -> None:
    model = model_from_config({**LLAMA, **fields}, name="m")
    assert model.settings.longer == longer
    assert model.settings.score_factor == 1.0
    assert not model.differs


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_factors_of_pairs_are_read_whatever_their_kind_was_called(kind: str) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    shared = {
        **PHI3,
        "partial_rotary_factor": 1.0,
        "head_dim": 16,
        "max_position_embeddings": 16384,
    }
    known = model_from_config(
        {**shared, "rope_scaling": {"type": kind, **factors}}, name="m"
    ).settings
    # Phi-3's class says 4096 where the file does not.
    assert known.longer == LongRotary(
        short=(1.0,) * 8, long=(2.0,) * 8, trained=4096.0, scale=sqrt(1 + log(4) / log(4096))
    )


def test_the_numbers_of_an_object_of_positions_go_before_those_beside_it() -> None:
    written = {
        "rope_theta": 5.0,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {"rope_theta": 7.0, "partial_rotary_factor": 0.5},
    }
    found = model_from_config({**PHI3, **written}, name="m").settings
    assert (found.rope_base, found.rope_share) == (7.0, 0.5)


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({**YARN, "beta_slow": 40.0}, "beta_slow 40 is not below beta_fast 32"),
        ({"rope_type": "dynamic"}, "factor is missing"),
    ],
)
def test_positions_without_their_numbers_are_refused(rope: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        settings(rope_scaling=rope)


def test_models_that_differ_by_a_number_are_not_equal() -> None:
    one, other = (
        model_from_config({**LLAMA, "rms_norm_eps": eps}, name="m") for eps in (1e-5, 1e-6)
    )
    assert one != other
    assert repr(one) == repr(other)


@pytest.mark.parametrize(
    ("field", "value"),
    [("rms_norm_eps", "small"), ("rms_norm_eps", 2), ("rope_theta", 0), ("rope_theta", True)],
)
def test_a_number_that_is_none_is_refused(field: str, value: object) -> None:
    with pytest.raises(ModelError, match=field):
        settings(**{field: value})


@pytest.mark.parametrize("architecture", sorted(CLASSES))
def test_what_a_configuration_does_not_say_is_its_classes(architecture: str) -> None:
    """Against the classes' fields as Transformers prints them."""
    own = CLASSES[architecture]
    kinds = {
        kind for kinds in REGISTRY_KINDS[architecture] for kind in (kinds, f"{kinds}_text")
    } & set(CLASS_FIELDS)
    printed = {
        value
        for kind in kinds
        for name, value in CLASS_FIELDS[kind].items()
        if name in ("rms_norm_eps", "layer_norm_epsilon")
    }
    assert printed in (set(), {own.eps})
    rotary = {name for kind in kinds for name in CLASS_FIELDS[kind] if name.startswith("rope_")}
    assert not (rotary and not own.rope_base)


REGISTRY_KINDS = {
    architecture: [
        kind
        for kind, target in REGISTRY.items()
        if target == REGISTRY.get(architecture) and kind.islower()
    ]
    for architecture in CLASSES
}


def test_every_family_whose_weights_are_read_has_its_classes_numbers() -> None:
    assert set(FAMILY_NAMES) <= set(CLASSES)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rope_scaling": {"rope_type": "proportional", "factor": 4.0}}, "kind proportional"),
        ({"partial_rotary_factor": 0.5}, "0.5 of a head"),
        (
            {
                "rope_scaling": {
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 8,
                    "long_factor": [1.0] * 7,
                }
            },
            "a factor for every pair",
        ),
        (
            {
                "rope_scaling": {
                    "type": "su",
                    "short_factor": [1.0] * 7 + ["x"],
                    "long_factor": [1.0] * 8,
                }
            },
            "a factor for every pair",
        ),
        (
            {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.7},
            "an odd number of elements",
        ),
        ({"hidden_act": "mish"}, "activation mish"),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 1e6},
                    "sliding_attention": {"rope_theta": 1e4},
                }
            },
            "by type of layer",
        ),
    ],
)
def test_what_is_not_computed_is_known_without_weights(fields: dict[str, Any], said: str) -> None:
    assert any(
        said in phrase for phrase in model_from_config({**LLAMA, **fields}, name="m").differs
    )
    assert not model_from_config(LLAMA, name="m").differs
