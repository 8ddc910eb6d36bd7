"""Every family: exact parameter counts, and the structure that the counts cannot see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.errors import ModelError
from shardwright.model.families.family_registry import REGISTRY
from shardwright.model.families.huggingface_config import (
    known_architectures,
    load_config,
    model_from_config,
)
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, ParameterClass

CONFIGS = Path(__file__).parent / "configs"

# Elements of all parameters as transformers 5.23.0 builds the same configuration (unique tensors,
# with the routers' correction buffers).
COUNTS = {
    "arcee": 10_184,
    "bloom": 89_808,
    "cohere": 10_688,
    "cohere2": 20_736,
    "deepseek_v2": 162_720,
    "deepseek_v2_qlora": 179_312,
    "deepseek_v3": 125_912,
    "ernie4_5": 11_696,
    "exaone4": 21_536,
    "falcon_11b": 68_256,
    "falcon_40b": 103_968,
    "falcon_7b": 100_512,
    "falcon_sequential": 117_984,
    "gemma": 100_464,
    "gemma2": 100_848,
    "gemma2_layer_types": 100_848,
    "gemma3_text": 317_264,
    "glm": 105_904,
    "glm4": 106_288,
    "glm4_moe": 165_960,
    "gpt2": 91_248,
    "gpt2_inner": 69_276,
    "gpt_bigcode": 23_936,
    "gpt_neox": 79_328,
    "gpt_neox_sequential": 78_560,
    "gpt_oss": 248_472,
    "gptj": 26_323,
    "granite": 11_360,
    "helium": 13_408,
    "llama": 80_688,
    "llama4_text": 177_840,
    "llama_biases": 102_128,
    "llama_mha": 92_976,
    "mistral": 86_832,
    "mixtral": 219_696,
    "mpt": 88_080,
    "nemotron": 90_336,
    "olmo2": 80_944,
    "olmo3": 21_664,
    "olmoe": 23_232,
    "opt": 77_696,
    "phi": 10_427,
    "phi3": 80_688,
    "qwen2": 76_208,
    "qwen2_moe": 130_256,
    "qwen3": 105_392,
    "qwen3_moe": 154_928,
    "seed_oss": 11_488,
    "smollm3": 20_864,
    "stablelm": 11_648,
    "stablelm_parallel": 11_392,
    "starcoder2": 9_928,
}


def model_of(name: str) -> Model:
    return load_config(CONFIGS / f"{name}.json")


def config_of(name: str) -> dict[str, object]:
    config: dict[str, object] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config


def block_of(model: Model, name: str) -> Block:
    return next(block for block in model.blocks if block.name == name)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_parameters_equal_those_of_the_reference_implementation(name: str) -> None:
    assert model_of(name).num_parameters == COUNTS[name]


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_shapes_of_linear_operators_and_their_weights_agree(name: str) -> None:
    for block in model_of(name).blocks:
        for operator in block.operators:
            if operator.kind not in (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR):
                continue
            experts = (
                operator.experts.experts
                if operator.kind is OperatorKind.GROUPED_LINEAR and operator.experts
                else 1
            )
            inner = 1
            for extent in operator.reads:
                inner *= extent.size
            weights = [p for p in operator.parameters if ".weight" in p.name]
            assert sum(p.size for p in weights) == experts * inner * sum(
                w.size for w in operator.writes
            ), operator.name


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_tied_weights_name_an_owner_of_the_same_size(name: str) -> None:
    model = model_of(name)
    owners = {
        f"{b.name}.{p.name}": p
        for b in model.blocks
        for o in b.operators
        for p in o.parameters
        if not p.tied_to
    }
    for block in model.blocks:
        for operator in block.operators:
            for parameter in operator.parameters:
                if parameter.tied_to:
                    assert owners[parameter.tied_to].size == parameter.size


def test_a_uniform_decoder_is_three_runs() -> None:
    model = model_of("llama")
    assert [(run.name, run.count, run.inputs) for run in model.runs] == [
        ("embed", 1, ()),
        ("layers", 4, ("embed",)),
        ("head", 1, ("layers",)),
    ]
    names = tuple(o.name for o in block_of(model, "layer").operators)
    assert names == (
        "norm1",
        "qkv",
        "rotary",
        "core",
        "proj",
        "residual1",
        "norm2",
        "up",
        "act",
        "down",
        "residual2",
    )


def test_windows_follow_the_layers() -> None:
    windows = {
        run.name: block_of(model, model.blocks[run.block].name)
        for model in (model_of("gemma3_text"),)
        for run in model.runs
    }
    assert list(windows) == [
        "embed",
        "layers.0",
        "layers.5",
        "layers.6",
        "layers.11",
        "layers.12",
        "head",
    ]
    core = {
        name: next((o.attention.window for o in block.operators if o.attention), None)
        for name, block in windows.items()
    }
    assert [core[name] for name in ("layers.0", "layers.5", "layers.6", "layers.11")] == [
        16,
        0,
        16,
        0,
    ]


def test_windows_of_other_families() -> None:
    def windows(name: str) -> list[int]:
        model = model_of(name)
        found = []
        for run in model.runs:
            shapes = [o.attention.window for o in model.blocks[run.block].operators if o.attention]
            found += shapes * run.count
        return found

    assert windows("mistral") == [16] * 4
    assert windows("phi3") == [20] * 4
    assert windows("qwen2") == [0, 0, 16, 16]
    assert windows("gemma2") == [16, 0, 16, 0]
    assert windows("gemma2_layer_types") == [0, 0, 0, 16]
    assert windows("gpt_oss") == [16, 0, 16, 0]
    assert windows("llama4_text") == [16, 16, 16, 0]


def test_experts_carry_their_dim_class_and_shape() -> None:
    block = block_of(model_of("mixtral"), "moe")
    operators = {o.name: o for o in block.operators}
    order = ["router", "route", "permute", "experts.up", "experts.act", "experts.down", "unpermute"]
    assert [o.name for o in block.operators if o.name in order] == order
    up = operators["experts.up"]
    assert up.klass is OperatorClass.EXPERTS
    assert up.kind is OperatorKind.GROUPED_LINEAR
    assert up.experts is not None
    assert (up.experts.experts, up.experts.topk) == (4, 2)
    for name in ("experts.up", "experts.down"):
        for parameter in operators[name].parameters:
            assert parameter.klass is ParameterClass.EXPERTS
            assert (parameter.extents[0].dim, parameter.extents[0].size) == (Dim.EXPERTS, 4)
        assert operators[name].width() is Dim.FFN
    assert operators["router"].klass is OperatorClass.ROUTER
    assert operators["residual2"].inputs == ("unpermute", "residual1")


def test_shared_expert_joins_the_routed_ones() -> None:
    operators = {o.name: o for o in block_of(model_of("qwen2_moe"), "moe").operators}
    assert operators["shared.up"].klass is OperatorClass.SHARED
    assert operators["combine"].inputs == ("unpermute", "shared.scale")
    assert operators["residual2"].inputs == ("combine", "residual1")


def test_group_limited_routing_is_kept() -> None:
    experts = next(
        o.experts for o in block_of(model_of("deepseek_v3"), "moe").operators if o.experts
    )
    assert experts.groups == 2
    free = next(o.experts for o in block_of(model_of("glm4_moe"), "moe").operators if o.experts)
    assert free.groups == 0


def test_latent_down_projections_have_no_width_to_split() -> None:
    operators = {o.name: o for o in block_of(model_of("deepseek_v3"), "dense").operators}
    for name in ("q_down", "q_norm", "kv_down", "kv_norm"):
        assert operators[name].width() is None
        assert operators[name].klass is OperatorClass.ATTN
    for name in ("q_up", "kv_up", "core", "proj"):
        assert operators[name].width() is Dim.HEADS
    core = operators["core"].attention
    assert core is not None
    assert (core.heads, core.kv_heads, core.head_dim, core.value_dim) == (6, 6, 16, 8)
    assert [w.size for w in operators["kv_down"].writes] == [12, 6]


def test_without_query_latent_queries_are_projected_directly() -> None:
    names = [o.name for o in block_of(model_of("deepseek_v2"), "moe").operators]
    assert "q" in names
    assert "q_down" not in names


def test_dense_layers_come_first() -> None:
    runs = [(run.name, run.count) for run in model_of("deepseek_v3").runs]
    assert runs == [("embed", 1), ("layers.0", 2), ("layers.2", 2), ("head", 1)]


def test_experts_may_alternate_with_dense_layers() -> None:
    model = model_of("llama4_text")
    kinds = [model.blocks[run.block].name for run in model.runs[1:-1]]
    assert kinds == ["dense_chunk", "moe_chunk", "dense_chunk", "moe_norope"]
    without = {o.name for o in block_of(model, "moe_norope").operators}
    assert "rotary" not in without
    assert "qk_norm" not in without


def test_prediction_modules_share_embedding_and_head() -> None:
    plain, predicting = model_of("deepseek_v3"), model_of("deepseek_v3_mtp")
    edges = {run.name: run.inputs for run in predicting.runs}
    assert edges["mtp.0"] == ("layers.2",)
    assert edges["mtp_head.0"] == ("mtp.0",)
    assert edges["mtp.1"] == ("mtp.0",)
    assert edges["head"] == ("layers.2",)
    layer, hidden = block_of(plain, "moe").num_parameters, 48
    # Per module: one layer, the projection of two hidden vectors to one, two norms, and the norm
    # before its logits.
    assert predicting.num_parameters - plain.num_parameters == 2 * (
        layer + 2 * hidden * hidden + 3 * hidden
    )
    module, head = block_of(predicting, "mtp"), block_of(predicting, "mtp_head")
    assert module.operators[0].parameters[0].tied_to == "embed.embed.weight"
    assert head.operators[1].parameters[0].tied_to == "head.logits.weight"
    join = next(o for o in module.operators if o.name == "join")
    assert join.inputs == ("embed_norm", "hidden_norm")


def test_parallel_residual_reads_the_input_twice() -> None:
    operators = {o.name: o for o in block_of(model_of("gpt_neox"), "layer").operators}
    assert operators["norm2"].inputs == ("input",)
    assert operators["residual2"].inputs == ("down", "residual1")
    one = {o.name: o for o in block_of(model_of("falcon_7b"), "layer").operators}
    assert one["up"].inputs == ("norm1",)
    assert "norm2" not in one


def test_old_and_new_spellings_give_one_model() -> None:
    new = config_of("qwen3_moe")
    old = dict(new)
    old["num_local_experts"] = old.pop("num_experts")
    old["architectures"] = ["Qwen3MoeForCausalLM"]
    assert model_from_config(new, name="m") == model_from_config(old, name="m")


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("llama", {"hidden_size": None}, "hidden_size"),
        ("llama", {"hidden_size": 0}, "hidden_size = 0"),
        ("llama", {"num_hidden_layers": -1}, "num_hidden_layers = -1"),
        ("llama", {"num_hidden_layers": "32"}, "num_hidden_layers must be a whole number"),
        ("llama", {"vocab_size": float("nan")}, "vocab_size must be a whole number"),
        ("llama", {"intermediate_size": 10**30}, "intermediate_size"),
        ("llama", {"num_key_value_heads": 4}, "num_key_value_heads = 4 does not divide"),
        ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ("llama", {"num_attention_heads": 7, "num_key_value_heads": 7}, "not a multiple of the 7"),
        ("mistral", {"num_key_value_heads": None}, "num_key_value_heads is missing"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "layer_types lists 1 layers of 4"),
        (
            "gpt_oss",
            {"layer_types": ["linear_attention"] * 4},
            "'linear_attention', which is not supported",
        ),
        ("gpt_oss", {"layer_types": None}, "layer_types is missing"),
        ("mixtral", {"num_experts_per_tok": 9}, "exceeds the 4 experts"),
        ("deepseek_v3", {"first_k_dense_replace": None}, "first_k_dense_replace is missing"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank"),
        ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window"),
        ("opt", {"word_embed_proj_dim": 24}, "word_embed_proj_dim = 24"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln"),
        ("mpt", {"attn_config": 3}, "attn_config must be an object"),
        ("llama", {"architectures": ["LlamaForCausalML"]}, "'LlamaForCausalML' is not supported"),
        ("llama", {"architectures": None, "model_type": None}, "model_type is missing"),
        (
            "llama",
            {
                "architectures": None,
                "num_hidden_layers": 10_000,
                "hidden_size": 2**20,
                "head_dim": 64,
                "intermediate_size": 2**23,
            },
            "parameters",
        ),
        ("qwen3_moe", {"num_local_experts": 16}, "two spellings"),
    ],
)
def test_a_bad_field_is_named(name: str, change: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        model_from_config({**config_of(name), **change}, name="m")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_suggests_the_near_one() -> None:
    with pytest.raises(ModelError) as caught:
        model_from_config({"architectures": ["LamaForCausalLM"]}, name="m")
    assert "LlamaForCausalLM" in caught.value.hint


def test_a_misspelled_field_is_suggested() -> None:
    config = config_of("llama")
    config["num_hiden_layers"] = config.pop("num_hidden_layers")
    with pytest.raises(ModelError) as caught:
        model_from_config(config, name="m")
    assert "num_hiden_layers" in caught.value.hint


def test_the_registry_points_at_builders() -> None:
    assert {"LlamaForCausalLM", "llama"} <= set(known_architectures())
    assert all(
        target.startswith("shardwright.model.") and ":" in target for target in REGISTRY.values()
    )
