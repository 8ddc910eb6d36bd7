"""Hybrids: which layer is what, and what stands inside."""

from __future__ import annotations

import pytest

from shardwright.model.ir.operator import OperatorClass, OperatorKind
from tests.model.extra_reference import (
    block_of,
    changed,
    main_parameters,
    model_of,
    operator_of,
    pattern,
    refusal,
)


def test_jamba_attends_and_routes_by_two_periods() -> None:
    # attention at 2 and 6 (period 4, offset 2), experts at odd layers (period 2, offset 1).
    kinds = [
        "mamba",
        "mamba_moe",
        "attention",
        "mamba_moe",
        "mamba",
        "mamba_moe",
        "attention",
        "mamba_moe",
    ]
    assert pattern(model_of("jamba")) == [("embed", 1), *((kind, 1) for kind in kinds), ("head", 1)]


def test_jamba_with_one_expert_is_dense() -> None:
    model = changed("jamba", num_experts=1, num_experts_per_tok=1)
    assert all(o.klass is not OperatorClass.EXPERTS for b in model.blocks for o in b.operators)


def test_jamba_has_no_positions_and_norms_the_steps() -> None:
    model = model_of("jamba")
    assert all(o.kind is not OperatorKind.ROTARY for b in model.blocks for o in b.operators)
    assert (
        sum(p.size for p in operator_of(block_of(model, "mamba"), "x_norm").parameters)
        == 3 + 16 + 16
    )


def test_falcon_h1_runs_attention_beside_the_recurrence() -> None:
    block = block_of(model_of("falcon_h1"), "layer")
    assert (
        operator_of(block, "qkv").inputs == operator_of(block, "ssm.in_proj").inputs == ("norm1",)
    )
    assert set(operator_of(block, "mix").inputs) == {"proj", "ssm.out_proj"}
    assert operator_of(block, "residual1").inputs == ("mix", "input")
    without = changed("falcon_h1", mamba_rms_norm=False)
    assert model_of("falcon_h1").num_parameters - without.num_parameters == 3 * 64


def test_granite_mixes_experts_with_a_shared_one() -> None:
    model = model_of("granite_hybrid")
    assert pattern(model) == [
        ("embed", 1),
        ("mamba", 2),
        ("attention", 1),
        ("mamba", 1),
        ("head", 1),
    ]
    dense = changed("granite_hybrid", num_local_experts=0)
    assert "up" in [o.name for o in block_of(dense, "mamba").operators]
    rotary = changed("granite_hybrid", position_embedding_type="rope")
    assert any(o.kind is OperatorKind.ROTARY for o in block_of(rotary, "attention").operators)
    assert all(o.kind is not OperatorKind.ROTARY for o in block_of(model, "attention").operators)


def test_nemotron_reads_letters_and_words() -> None:
    letters = changed("nemotron_h", hybrid_override_pattern="ME*-", num_hidden_layers=4)
    words = changed(
        "nemotron_h",
        hybrid_override_pattern=None,
        layers_block_type=["mamba", "moe", "attention", "mlp"],
        num_hidden_layers=4,
    )
    assert (
        pattern(letters)
        == pattern(words)
        == [("embed", 1), ("mamba", 1), ("moe", 1), ("attention", 1), ("mlp", 1), ("head", 1)]
    )
    assert letters.blocks == words.blocks


def test_latent_experts_travel_at_the_latent_width() -> None:
    block = block_of(model_of("nemotron_3_latent"), "moe")
    permute = operator_of(block, "permute")
    assert [e.size for e in permute.writes] == [24]
    assert permute.inputs[0] == "latent_down"
    assert operator_of(block, "router").inputs == ("norm",)
    assert [e.size for e in operator_of(block, "shared.up").reads] == [48]


def test_the_prediction_module_chains_attention_and_experts() -> None:
    model = model_of("nemotron_3_mtp")
    assert (
        main_parameters(model)
        == changed("nemotron_3_mtp", num_nextn_predict_layers=0).num_parameters
    )
    names = [o.name for o in block_of(model, "mtp").operators]
    assert names.index("join") < names.index("0.core") < names.index("1.unpermute")
    assert operator_of(block_of(model, "mtp"), "1.norm").inputs == ("0.residual",)


@pytest.mark.parametrize(
    ("name", "fields", "named"),
    [
        ("jamba", {"attn_layer_offset": 4}, "attn_layer_offset"),
        ("jamba", {"expert_layer_period": None}, "expert_layer_period"),
        ("falcon_h1", {"mamba_n_heads": 7}, "mamba_n_heads"),
        ("falcon_h1", {"projectors_bias": True}, "projectors_bias"),
        ("granite_hybrid", {"layer_types": None}, "layer_types"),
        ("nemotron_h", {"hybrid_override_pattern": "MEX"}, "hybrid_override_pattern"),
        ("nemotron_h", {"num_hidden_layers": 7}, "num_hidden_layers"),
        ("nemotron_h", {"sliding_window": 8}, "sliding_window"),
        ("nemotron_3_latent", {"layers_block_type": ["mamba", "xlstm"]}, "layers_block_type"),
    ],
)
def test_errors_name_the_field(name: str, fields: dict[str, object], named: str) -> None:
    assert named in refusal(name, **fields)
