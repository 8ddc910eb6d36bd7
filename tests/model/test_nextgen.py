"""The newest generation: counts of every family here, layer patterns, refusals by name, and
fuzzing."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ModelError
from shardwright.model.families.family_registry import REGISTRY
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorKind
from tests.model.extra_reference import (
    CONFIGS,
    block_of,
    changed,
    config_of,
    main_parameters,
    model_of,
    operator_of,
    pattern,
    refusal,
)
from tests.tiers import examples

# Elements of all parameters as transformers 5.23.0 builds the same configuration (unique tensors,
# with the routers' correction buffers, without prediction modules).
COUNTS = {
    "bert": 62_836,
    "deepseek_v32": 106_504,
    "falcon_h1": 121_560,
    "gemma4": 189_200,
    "glm_moe_dsa": 178_216,
    "granite_hybrid": 171_324,
    "jamba": 256_962,
    "mamba": 64_032,
    "mamba2": 65_004,
    "minimax_m2": 117_480,
    "minimax_m3": 153_272,
    "nemotron_3_latent": 61_656,
    "nemotron_3_mtp": 72_408,
    "nemotron_h": 92_048,
    "qwen3_5_moe": 218_068,
    "qwen3_5_text": 100_556,
    "qwen3_next": 303_352,
    "qwen3_vl": 176_152,
}
EMBED_HEAD_NORM = 2 * 100 * 48 + 48
SWIGLU = 3 * 48 * 80
ROUTED = 48 * 8 + 8 + 8 * 3 * 48 * 20
SHARED = 3 * 48 * 20
LATENT = (48 * 24 + 24 + 24 * 96) + (48 * 20 + 16 + 16 * (72 + 60)) + 60 * 48
TOWER = (
    (48 * 32 + 32 + 16 * 32)
    + 3 * (4 * (32 * 32 + 32) + 2 * 32 * 72 + 72 + 32 + 4 * 32)
    + 128
    + (128 * 128 + 128)
    + (128 * 48 + 48)
)
# Families that the reference does not have, or builds otherwise from a small configuration: the
# sums of their layers.
HAND_COUNTED = {
    "mimo": EMBED_HEAD_NORM + 3 * (48 * 80 + 80 + 48 * 48 + SWIGLU + 96),
    "mimo_v2_flash": EMBED_HEAD_NORM
    + 2 * (48 * (96 + 32 + 24) + 72 * 48)
    + 2 * (48 * (96 + 48 + 36) + 72 * 48 + 6)
    + SWIGLU
    + 3 * ROUTED
    + 4 * 96,
    "step3p7_text": EMBED_HEAD_NORM
    + 2 * (48 * (96 + 64 + 6) + 96 * 48 + 32)
    + 2 * (48 * (128 + 64 + 8) + 128 * 48 + 32)
    + SWIGLU
    + 3 * (ROUTED + SHARED)
    + 4 * 96,
    "nemotron_nas": EMBED_HEAD_NORM + (48 * 80 + 48 * 48 + 48) + 2 * (3 * 48 * 256 + 48),
    "t5": 2 * 4800
    + 96
    + 2 * 32 * 6
    + 4 * (4 * 48 * 96 + SWIGLU + 96)
    + 3 * (8 * 48 * 96 + SWIGLU + 144),
    "mt5": 4800
    + 96
    + 2 * 32 * 6
    + 4 * (4 * 48 * 96 + SWIGLU + 96)
    + 3 * (8 * 48 * 96 + SWIGLU + 144),
    "umt5": 4800
    + 96
    + 7 * 32 * 6
    + 4 * (4 * 48 * 96 + SWIGLU + 96)
    + 3 * (8 * 48 * 96 + SWIGLU + 144),
    "kimi_k25": EMBED_HEAD_NORM + 3 * (LATENT + 96) + SWIGLU + 2 * (ROUTED + SHARED) + TOWER,
    # The reference's 129,392 less the norm behind the tower, which LLaVA does not use.
    "llava": 129_392 - 64,
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_parameters_equal_those_of_the_reference_implementation(name: str) -> None:
    assert main_parameters(model_of(name)) == COUNTS[name]


@pytest.mark.parametrize("name", sorted(HAND_COUNTED))
def test_parameters_equal_the_sum_of_the_layers(name: str) -> None:
    assert main_parameters(model_of(name)) == HAND_COUNTED[name]


def test_every_registered_builder_has_a_configuration_here() -> None:
    refused = {
        "shardwright.model.families.refused_architectures:refuse_deepseek_v4",
        "shardwright.model.families.refused_architectures:refuse_kimi_k3",
    }
    # These read what another builder here reads, or are reached through one; the catalog has a
    # model of each but the last.
    later = {
        f"shardwright.model.families.vision_language_models:build_{n}"
        for n in ("qwen3_vl_moe", "qwen3_5_vl", "minimax_m3_vl", "llama4")
    }
    later |= {
        "shardwright.model.families.decoders.qwen3_next:build_qwen3_5_moe",
        "shardwright.model.families.decoders.gemma4:build_gemma4",
    }
    built = {REGISTRY[config_of(name)["architectures"][0]] for name in (*COUNTS, *HAND_COUNTED)}
    types = {json.loads(path.read_text()).get("model_type") for path in CONFIGS.glob("*.json")}
    usual = {REGISTRY[kind] for kind in types if kind in REGISTRY}
    assert built | usual | refused | later == set(REGISTRY.values())


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text"])
def test_every_fourth_layer_attends(name: str) -> None:
    model = model_of(name)
    kinds = [
        "full" if any(o.attention for o in block.operators) else "linear" for block in model.blocks
    ]
    layers = [kinds[run.block] for run in model.runs[1:-1] for _ in range(run.count)]
    assert layers == (["linear"] * 3 + ["full"]) * (len(layers) // 4)


def test_gated_delta_net() -> None:
    block = block_of(model_of("qwen3_5_text"), "linear")
    # q, k: 2 heads of 8; v, z: 4 heads of 12; b, a: one element a value head.
    assert [(e.size, e.quantum) for e in operator_of(block, "in_proj").writes] == [
        (16, 8),
        (16, 8),
        (48, 12),
        (48, 12),
        (4, 1),
        (4, 1),
    ]
    scan = operator_of(block, "scan").scan
    assert scan is not None
    assert (scan.heads, scan.head_dim, scan.state, scan.groups, scan.delta) == (4, 12, 8, 2, True)
    full = block_of(model_of("qwen3_5_text"), "full")
    assert len(operator_of(full, "qkv").writes) == 4
    assert operator_of(full, "gate").inputs == ("core", "qkv")


def test_sparse_attention_selects_keys_with_an_indexer_that_sees_all() -> None:
    block = block_of(model_of("deepseek_v32"), "moe")
    core, index = operator_of(block, "core"), operator_of(block, "index")
    assert core.attention is not None
    assert index.attention is not None
    assert core.attention.selected == 16
    assert "index" in core.keeps
    assert index.kind is OperatorKind.INDEX
    assert (
        index.attention.heads,
        index.attention.kv_heads,
        index.attention.head_dim,
        index.attention.selected,
    ) == (4, 1, 8, 0)
    assert operator_of(block, "index_q").inputs == ("q_norm",)


def test_glm_shares_selections() -> None:
    model = model_of("glm_moe_dsa")
    assert pattern(model) == [
        ("embed", 1),
        ("dense", 1),
        ("moe", 1),
        ("moe_shared_index", 2),
        ("moe", 1),
        ("head", 1),
    ]
    shared = block_of(model, "moe_shared_index")
    assert all(o.kind is not OperatorKind.INDEX for o in shared.operators)
    core = operator_of(shared, "core").attention
    assert core is not None
    assert core.selected == 16
    counted = changed(
        "glm_moe_dsa", indexer_types=None, index_topk_freq=3, index_skip_topk_offset=2
    )
    assert [name for name, _ in pattern(counted)[1:-1]] == [
        "dense",
        "moe",
        "moe_shared_index",
        "moe",
    ]
    assert changed("glm_moe_dsa", indexer_types=None, index_topk_pattern="FFSSF") == model


def test_minimax_selects_blocks_of_keys() -> None:
    model = model_of("minimax_m3")
    assert pattern(model) == [("embed", 1), ("dense", 1), ("moe_indexed", 3), ("head", 1)]
    core = operator_of(block_of(model, "moe_indexed"), "core").attention
    dense = operator_of(block_of(model, "dense"), "core").attention
    assert core is not None
    assert dense is not None
    assert (core.selected, dense.selected) == (16, 0)


def test_mimo_windows_have_heads_of_their_own() -> None:
    model = model_of("mimo_v2_flash")
    assert pattern(model) == [
        ("embed", 1),
        ("full", 1),
        ("window_moe", 2),
        ("full_moe", 1),
        ("head", 1),
    ]
    shapes = [
        operator_of(block_of(model, name), "core").attention for name in ("full_moe", "window_moe")
    ]
    assert [(s.kv_heads, s.window, s.sinks, s.value_dim) for s in shapes if s is not None] == [
        (2, 0, False, 12),
        (3, 8, True, 12),
    ]


def test_gemma4_full_layers_use_keys_as_values() -> None:
    model = model_of("gemma4")
    assert len(operator_of(block_of(model, "layer"), "qk").writes) == 2
    assert len(operator_of(block_of(model, "layer_window"), "qkv").writes) == 3
    assert operator_of(block_of(model, "layer"), "expert_norm").inputs == ("residual1",)
    assert set(operator_of(block_of(model, "layer"), "combine").inputs) == {"moe_norm", "mlp_norm"}


def test_pruned_layers_keep_what_is_left() -> None:
    # 2 x 2.0 x 48 / 3 = 64 and 2 x 1.0 x 48 / 3 = 32, both rounded up to 256; the third layer is
    # gone.
    assert pattern(model_of("nemotron_nas")) == [
        ("embed", 1),
        ("attn3_ffn256", 1),
        ("no_attn_ffn256", 1),
        ("head", 1),
    ]


def test_prediction_modules_are_beside_the_main_model() -> None:
    assert (
        main_parameters(model_of("mimo"))
        == changed("mimo", num_nextn_predict_layers=0).num_parameters
    )
    text = {**config_of("qwen3_5_text"), "mtp_num_hidden_layers": 1}
    assert "core" in [o.name for o in block_of(model_from_config(text, name="m"), "mtp").operators]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (
            {"architectures": ["DeepseekV4ForCausalLM"], "hc_mult": 4, "compress_ratios": [0, 4]},
            "hc_mult = 4",
        ),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "compress_ratios"),
        (
            {
                "architectures": ["KimiK3ForConditionalGeneration"],
                "text_config": {"attn_res_block_size": 12},
            },
            "attn_res_block_size",
        ),
        (
            {
                "architectures": ["KimiK3ForConditionalGeneration"],
                "text_config": {"linear_attn_config": {}},
            },
            "linear_attn_config",
        ),
        (
            {
                "architectures": ["Llama4ForConditionalGeneration"],
                "text_config": {},
                "vision_config": {},
            },
            "vision_config",
        ),
    ],
)
def test_what_has_no_graph_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as caught:
        model_from_config(config, name="m")
    assert named in str(caught.value)
    assert "not supported" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "fields", "named"),
    [
        ("qwen3_next", {"linear_num_key_heads": 3}, "linear_num_key_heads"),
        ("qwen3_next", {"full_attention_interval": None}, "full_attention_interval"),
        (
            "qwen3_5_text",
            {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": True},
            "mtp_use_dedicated_embeddings",
        ),
        ("deepseek_v32", {"index_topk": None}, "index_topk"),
        ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank"),
        ("glm_moe_dsa", {"indexer_types": ["shared"] * 5}, "first layer"),
        ("glm_moe_dsa", {"mlp_layer_types": ["sparse"] * 5}, "mlp_layer_types"),
        ("minimax_m2", {"qk_norm_type": "odd"}, "qk_norm_type"),
        ("minimax_m3", {"moe_layer_freq": [1, 1]}, "moe_layer_freq"),
        (
            "minimax_m3",
            {"sparse_attention_config": {"use_sparse_attention": True}},
            "sparse_attention_config.sparse_attention_freq",
        ),
        ("mimo_v2_flash", {"swa_num_key_value_heads": 4}, "swa_num_key_value_heads"),
        ("mimo_v2_flash", {"add_swa_attention_sink_bias": None}, "add_swa_attention_sink_bias"),
        ("nemotron_nas", {"block_configs": [{}]}, "block_configs"),
        (
            "nemotron_nas",
            {"block_configs": [{"attention": {"replace_with_linear": True}, "ffn": {}}] * 3},
            "replace_with_linear",
        ),
    ],
)
def test_errors_name_the_field(name: str, fields: dict[str, object], named: str) -> None:
    assert named in refusal(name, **fields)


def test_step_must_say_how_many_heads_windows_have() -> None:
    config = config_of("step3p7_text")
    del config["num_sliding_attention_heads"]
    with pytest.raises(ModelError, match="num_sliding_attention_heads"):
        model_from_config(config, name="m")


ODD = st.sampled_from([2**40, 10**300, 0.5, "auto", "full", "MEM*"])
SCALARS = st.none() | st.booleans() | st.integers(-2, 200) | ODD | st.text(max_size=6)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=8)
    | st.dictionaries(st.text(max_size=6), SCALARS, max_size=3)
)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration with some fields changed, at the top or in a section."""
    config: dict[str, Any] = copy.deepcopy(
        config_of(draw(st.sampled_from(sorted((*COUNTS, *HAND_COUNTED)))))
    )
    for _ in range(draw(st.integers(1, 4))):
        sections = [config, *(v for v in config.values() if isinstance(v, dict))]
        section = draw(st.sampled_from(sections))
        key = draw(st.sampled_from(sorted(section))) if section else "hidden_size"
        section[key] = draw(VALUES)
    return config


def outcome(config: dict[str, Any]) -> Model | ModelError:
    try:
        return model_from_config(config, name="m")
    except ModelError as error:
        return error


@examples(100, 2500)
@given(mutated())
def test_a_changed_configuration_gives_a_model_or_a_model_error(config: dict[str, Any]) -> None:
    result = outcome(config)
    if isinstance(result, ModelError):
        assert "\n" not in str(result)
    else:
        assert result.num_parameters > 0
