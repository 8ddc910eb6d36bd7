"""Fields of a configuration that a family does not read: harmless, refused, or listed; never
silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ModelError
from shardwright.model.catalog.load_model_by_name import ENTRIES
from shardwright.model.families.family_registry import REGISTRY
from shardwright.model.families.fields.find_config_fields_no_builder_read import (
    fields_by_builder,
    is_inert,
    without_indices,
)
from shardwright.model.families.huggingface_config import model_from_config
from tests.model.test_config_files import CONFIGS, VALUES, outcome
from tests.registries import place, require_same_members
from tests.tiers import examples, in_both, in_proof
from tools.config_fields import PAGE, configurations, explored, page

HERE = Path(__file__).parent
# One of each architecture, as carried by aiconfigurator-core 0.12.0 (weights' number formats left
# out).
PUBLISHED: dict[str, dict[str, Any]] = json.loads((HERE / "published_configs.json").read_text())
# What the configuration class of transformers 5.23.0 writes beside the fields of a configuration of
# these tests, by its name.
OF_CLASS: dict[str, dict[str, Any]] = json.loads((HERE / "class_fields.json").read_text())
# What files of older releases have, from memory.
OF_FILES = {
    "bloom": {
        "offset_alibi": 100,
        "pretraining_tp": 4,
        "skip_bias_add": True,
        "masked_softmax_fusion": True,
        "seq_length": 2048,
    },
    "gemma2": {
        "cache_implementation": "hybrid",
        "query_pre_attn_scalar": 224,
        "final_logit_softcapping": 30.0,
        "sliding_window_size": 16,
    },
    "gpt2": {
        "n_ctx": 1024,
        "summary_first_dropout": 0.1,
        "task_specific_params": {"text-generation": {"max_length": 50}},
    },
    "mpt": {
        "attn_config": {"attn_impl": "torch", "alibi": True},
        "init_config": {"name": "kaiming_normal_"},
        "init_device": "cpu",
    },
    "phi3": {
        "original_max_position_embeddings": 4096,
        "embd_pdrop": 0.0,
        "rope_scaling": {"type": "su", "long_factor": [1.0]},
    },
    "qwen2": {
        "sliding_window": 131072,
        "max_window_layers": 28,
        "use_sliding_window": False,
        "use_mrope": False,
    },
    "t5": {
        "n_positions": 512,
        "output_past": True,
        "relative_attention_max_distance": 128,
        "is_encoder_decoder": True,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_load_with_all_their_fields(name: str) -> None:
    assert model_from_config(PUBLISHED[name], name=name).num_parameters > 0


@pytest.mark.parametrize("name", OF_CLASS)
def test_what_a_configuration_class_writes_is_no_error(name: str) -> None:
    plain = model_from_config(CONFIGS[name], name=name)
    assert model_from_config({**OF_CLASS[name], **CONFIGS[name]}, name=name).vocab == plain.vocab


@pytest.mark.parametrize("name", OF_FILES)
def test_what_older_files_write_is_no_error(name: str) -> None:
    assert model_from_config({**CONFIGS[name], **OF_FILES[name]}, name=name).num_parameters > 0


def test_every_field_of_the_catalog_is_read() -> None:
    unread = {e.names[0]: model_from_config(e.config, name="m").unread for e in ENTRIES}
    assert {name: fields for name, fields in unread.items() if fields} == {}


@pytest.mark.parametrize(
    ("config", "field", "value", "said"),
    [
        ("llama", "num_local_experts", 8, "is the architecture right"),
        ("llama", "kv_lora_rank", 512, "DeepseekV2ForCausalLM"),
        ("llama", "use_qk_norm", True, "is the architecture right"),
        ("mistral", "attention_bias", True, "is the architecture right"),
        ("llama", "num_kv_heads", 2, "FalconForCausalLM"),
        ("llama", "num_key_value_head", 2, "did you mean num_key_value_heads?"),
        ("llama", "num_hidden_layer", 4, "did you mean num_hidden_layers?"),
        ("mixtral", "num_experts_per_tokens", 2, "did you mean"),
        ("qwen3_vl", "text_config.num_local_experts", 8, "is the architecture right"),
        ("qwen3_vl", "vision_config.spatial_merge_sizes", 2, "did you mean spatial_merge_size?"),
    ],
)
def test_fields_of_another_family_and_misspelt_ones_are_refused(
    config: str, field: str, value: object, said: str
) -> None:
    section, _, name = field.rpartition(".")
    mapping = dict(CONFIGS[config])
    if section:
        mapping[section] = {**mapping[section], name: value}
    else:
        mapping[name] = value
    with pytest.raises(ModelError) as caught:
        model_from_config(mapping, name="m")
    assert f"{field} = {value!r}" in caught.value.message
    assert said in caught.value.hint


@pytest.mark.parametrize("value", [None, False, 0, 1, [], ""])
def test_values_that_ask_for_nothing_are_no_error(value: object) -> None:
    model_from_config({**CONFIGS["llama"], "num_local_experts": value}, name="m")


def test_what_nobody_knows_is_listed_and_changes_nothing() -> None:
    plain = model_from_config({**CONFIGS["llama"], "rope_theta": 1e6}, name="m")
    model = model_from_config(
        {**CONFIGS["llama"], "engram_slots": 7, "rope_theta": 1e6, "auto_map": {"a": "b"}}, name="m"
    )
    assert model.unread == ("engram_slots",)
    assert (model, repr(model)) == (plain, repr(plain))


@in_both
def test_the_fields_that_families_read_are_those_of_the_file() -> None:
    """In `make proof` by exploring everything again; here only that a part of it finds nothing that
    the file has not."""
    if in_proof():
        assert PAGE.read_text(encoding="utf-8") == page(), "run python tools/config_fields.py"
    for target, names in explored(configurations(catalog=False), others=(None, True)).items():
        assert names <= fields_by_builder()[target], "run python tools/config_fields.py"
    refusals = {target for target in REGISTRY.values() if ":refuse_" in target}
    require_same_members(
        set(fields_by_builder()) | refusals,
        REGISTRY.values(),
        f"{place('src/shardwright/model/families/reads.json')}: run python tools/config_fields.py",
    )


def test_no_field_that_changes_a_size_is_called_harmless() -> None:
    sizes = {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "num_local_experts",
    }
    sizes |= {
        "vocab_size",
        "head_dim",
        "num_experts_per_tok",
        "sliding_window",
        "tie_word_embeddings",
        "attention_bias",
        "q_lora_rank",
    }
    assert not [name for name in sizes if is_inert(name)]


NAMES = st.sampled_from(
    sorted({name for names in fields_by_builder().values() for name in names if "." not in name})
) | st.text(max_size=12)


@examples(30, 2000)
@given(st.sampled_from(sorted(CONFIGS)), st.dictionaries(NAMES, VALUES, max_size=3), st.booleans())
def test_any_further_field_gives_a_model_or_a_model_error(
    name: str, more: dict[str, Any], inside: bool
) -> None:
    config = CONFIGS[name]
    section = (
        next((key for key, value in config.items() if isinstance(value, dict)), "")
        if inside
        else ""
    )
    result = outcome(
        {**config, section: {**config[section], **more}} if section else {**config, **more}
    )
    if isinstance(result, ModelError):
        assert "\n" not in str(result)
    else:
        added = {without_indices(f"{section}.{key}" if section else key) for key in more}
        assert set(result.unread) <= added | set(model_from_config(config, name="m").unread)
