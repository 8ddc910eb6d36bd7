"""Formats of quantised checkpoints, as their configurations say them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ModelError
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.families.fields.weight_quantization import stored_format
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.checkpoint_number_formats import StoredFormat
from tests.tiers import examples

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
}

BLOCKS = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}
GPT_OSS = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
EXPERTS_INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"},
            "input_activations": None,
        }
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
}
W8A8 = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "int", "dynamic": True},
        }
    },
    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
}
OPT_NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "kv_cache_quant_algo": "FP8",
    "exclude_modules": ["lm_head", "model.layers.*.self_attn.q_proj", "model.layers.*.mlp.gate"],
}


def read(quantised: Any, **more: Any) -> StoredFormat:
    """What a configuration with this object says."""
    model = model_from_config({**LLAMA, **more, "quantization_config": quantised}, name="m")
    assert model.stored is not None
    return model.stored


@pytest.mark.parametrize(
    ("said", "weights", "activations", "stays_in_16_bits"),
    [
        (BLOCKS, "fp8", "fp8", set()),
        (
            {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]},
            "fp8",
            "fp8",
            set(),
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", "bf16", set()),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4-group32", "bf16", set()),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", "bf16", set()),
        (GPT_OSS, "mxfp4", "bf16", {"attention", "output"}),
        (EXPERTS_INT4, "int4-group32", "bf16", {"attention", "output", "mlp"}),
        (W8A8, "int8", "int8", set()),
        (OPT_NVFP4, "nvfp4", "nvfp4", {"attention"}),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "int4-group32", "bf16", set()),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", "bf16", set()),
    ],
)
def test_a_method_says_formats_and_which_layers_have_them(
    said: dict[str, Any], weights: str, activations: str, stays_in_16_bits: set[str]
) -> None:
    found = read(said)
    assert (found.weights, found.activations) == (weights, activations)
    classes = ("attention", "output", "mlp", "experts")
    assert {name for name in classes if not getattr(found, name)} == stays_in_16_bits
    assert found.weights in set(NumberFormat)


def test_the_cache_and_the_head_follow_what_the_object_says() -> None:
    assert read(OPT_NVFP4).cache == "fp8"
    assert read(W8A8).cache == "fp8"
    assert read(BLOCKS).cache == ""
    assert read(W8A8).head
    assert not read(EXPERTS_INT4).head
    assert not read(BLOCKS).head


@pytest.mark.parametrize("width", [2, 3])
def test_a_format_without_kernels_has_a_method_and_no_format(width: int) -> None:
    assert read({"quant_method": "gptq", "bits": width}) == StoredFormat(
        method="gptq", weights="", activations="bf16"
    )
    assert read({"quant_method": "aqlm"}).weights == ""


def test_a_configuration_in_16_bits_says_nothing() -> None:
    assert model_from_config(LLAMA, name="m").stored is None
    assert model_from_config({**LLAMA, "quantization_config": None}, name="m").stored is None


@pytest.mark.parametrize("said", ["fp8", 8, ["awq"], {"bits": 4}])
def test_an_object_without_a_method_is_refused(said: Any) -> None:
    with pytest.raises(ModelError, match="quantization_config"):
        read(said)


def test_the_file_of_modelopt_beside_the_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_model(str(tmp_path)).stored is None
    beside = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert load_model(str(tmp_path)).stored == StoredFormat(
        method="modelopt", weights="fp8", activations="fp8", cache="fp8"
    )


def test_a_pattern_that_would_never_end_matches_nothing() -> None:
    assert read({**EXPERTS_INT4, "ignore": ["re:(.+)+x", "re:(((", "re:.*self_attn.*"]}).mlp


PATTERNS = st.text(alphabet="re:.*\\()[]|+?{}_abcdmlps0123456789", max_size=30)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["fp8", "gptq", "Linear", "int", "float"])
    | PATTERNS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [*GPT_OSS, *EXPERTS_INT4, *W8A8, *OPT_NVFP4, "bits", "weights", "group_0"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@examples(100)
@given(
    said=st.dictionaries(
        st.sampled_from([*EXPERTS_INT4, *OPT_NVFP4, *GPT_OSS, "bits"]), VALUES, max_size=6
    )
)
def test_any_object_is_read_or_refused(said: dict[str, Any]) -> None:
    try:
        found = stored_format({"quantization_config": said}, layers=4, source="config.json")
    except ModelError:
        return
    assert found is None or found.weights == "" or found.weights in set(NumberFormat)
