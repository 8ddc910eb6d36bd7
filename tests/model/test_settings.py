"""Numbers that sizes do not tell: of a configuration, of its family's class where it is silent, and what is not computed by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import ModelError
from shardwright.execute.weights.families import FAMILIES
from shardwright.model.families.huggingface import model_from_config
from shardwright.model.families.registry import REGISTRY
from shardwright.model.families.settings import CLASSES
from shardwright.model.ir.settings import LongerRotary, Settings
from tests.configs import LLAMA

CLASS_FIELDS = json.loads((Path(__file__).parent / "class_fields.json").read_text())


def settings(**fields: Any) -> Settings:
    return model_from_config({**LLAMA, **fields}, name="m").settings


def test_a_model_knows_the_numbers_of_its_configuration() -> None:
    longer = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}
    found = settings(rope_theta=500000.0, rms_norm_eps=1e-5, rope_scaling=longer)
    assert found == Settings(rope_base=500000.0, eps=1e-5, longer=LongerRotary(factor=8.0, trained=64.0, low=1.0, high=4.0))
    assert settings(rope_parameters={"rope_type": "default", "rope_theta": 7.0}).rope_base == 7.0
    assert settings() == Settings(rope_base=10000.0, eps=1e-6)


def test_models_that_differ_by_a_number_are_not_equal() -> None:
    one, other = (model_from_config({**LLAMA, "rms_norm_eps": eps}, name="m") for eps in (1e-5, 1e-6))
    assert one != other
    assert repr(one) == repr(other)


@pytest.mark.parametrize(("field", "value"), [("rms_norm_eps", "small"), ("rms_norm_eps", 2), ("rope_theta", 0), ("rope_theta", True)])
def test_a_number_that_is_none_is_refused(field: str, value: object) -> None:
    with pytest.raises(ModelError, match=field):
        settings(**{field: value})


@pytest.mark.parametrize("architecture", sorted(CLASSES))
def test_what_a_configuration_does_not_say_is_its_classes(architecture: str) -> None:
    """Against the classes' fields as Transformers prints them."""
    own = CLASSES[architecture]
    kinds = {kind for kinds in REGISTRY_KINDS[architecture] for kind in (kinds, f"{kinds}_text")} & set(CLASS_FIELDS)
    printed = {value for kind in kinds for name, value in CLASS_FIELDS[kind].items() if name in ("rms_norm_eps", "layer_norm_epsilon")}
    assert printed in (set(), {own.eps})
    rotary = {name for kind in kinds for name in CLASS_FIELDS[kind] if name.startswith("rope_")}
    assert not (rotary and not own.rope_base)


REGISTRY_KINDS = {
    architecture: [kind for kind, target in REGISTRY.items() if target == REGISTRY.get(architecture) and kind.islower()]
    for architecture in CLASSES
}


def test_every_family_whose_weights_are_read_has_its_classes_numbers() -> None:
    assert set(FAMILIES) <= set(CLASSES)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "kind yarn"),
        ({"partial_rotary_factor": 0.5}, "0.5 of a head"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}}, "by type of layer"),
    ],
)
def test_what_is_not_computed_is_known_without_weights(fields: dict[str, Any], said: str) -> None:
    assert any(said in phrase for phrase in model_from_config({**LLAMA, **fields}, name="m").differs)
    assert not model_from_config(LLAMA, name="m").differs
