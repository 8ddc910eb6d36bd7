"""Gemma 4's language model: layers of two kinds, in the fields of published files and in those that
Transformers writes."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.errors import ModelError
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import ProportionalRotary
from shardwright.model.ir.operator import AttentionShape, Operator, OperatorKind

TEXT: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 4,
    "intermediate_size": 40,
    "vocab_size": 100,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
WIDE = {"global_head_dim": 16, "num_global_key_value_heads": 3, "attention_k_eq_v": True}
LISTED = {"head_dim": 16, "num_key_value_heads": 3}


def made(**fields: Any) -> Model:
    return model_from_config({**TEXT, **fields}, name="gemma")


def without(*names: str, **fields: Any) -> Model:
    return model_from_config(
        {name: value for name, value in {**TEXT, **fields}.items() if name not in names},
        name="gemma",
    )


def shapes(model: Model) -> list[AttentionShape]:
    """Of every layer."""
    found = {
        i: o.attention
        for i, b in enumerate(model.blocks)
        for o in b.operators
        if o.attention is not None
    }
    return [found[run.block] for run in model.runs if run.block in found for _ in range(run.count)]


def operators(model: Model, name: str) -> list[Operator]:
    return [o for block in model.blocks for o in block.operators if o.name == name]


def test_what_transformers_writes_layer_by_layer_is_the_same_model() -> None:
    listed = made(per_layer_config={"1": LISTED, "3": LISTED}, attention_k_eq_v=True)
    assert listed == made(**WIDE)
    assert listed.unread == ()
    assert [(s.head_dim, s.kv_heads, s.window) for s in shapes(listed)] == [
        (8, 2, 8),
        (16, 3, 0),
    ] * 2


def test_layers_that_are_not_listed_are_as_the_others() -> None:
    plain = made(per_layer_config={}, attention_k_eq_v=True)
    assert {(s.head_dim, s.kv_heads) for s in shapes(plain)} == {(8, 2)}
    assert {(s.head_dim, s.kv_heads) for s in shapes(made(attention_k_eq_v=True))} == {
        (8, 2),
        (512, 2),
    }


def test_key_heads_of_full_layers_are_read_where_keys_are_values() -> None:
    assert {s.kv_heads for s in shapes(made(**{**WIDE, "attention_k_eq_v": False}))} == {2}


def test_the_last_layer_sees_all_keys_and_every_sixth_where_nothing_is_written() -> None:
    assert [s.window for s in shapes(made(layer_types=["sliding_attention"] * 4))] == [8, 8, 8, 0]
    unwritten = without("layer_types", "sliding_window", num_hidden_layers=8)
    assert [s.window for s in shapes(unwritten)] == [512] * 5 + [0, 512, 0]


def test_values_are_normed_and_layers_have_a_factor_that_is_no_parameter() -> None:
    model = made(**WIDE)
    for norm in operators(model, "qk_norm"):
        assert len(norm.reads) == 3
        assert len(norm.parameters) == 2
    for last in operators(model, "residual2"):
        assert [(p.size, p.trainable) for p in last.parameters] == [(1, False)]
    stored = sum(
        run.count * p.size
        for run in model.runs
        for o in model.blocks[run.block].operators
        for p in o.parameters
        if not p.tied_to
    )
    assert model.num_parameters == stored - 4
    assert model.num_parameters == model.num_trainable_parameters


def test_turns_of_its_class_and_those_that_are_written() -> None:
    assert made().settings.longer == ProportionalRotary(share=0.25)
    assert (
        made().settings.rope_base,
        made().settings.local_rope_base,
        made().settings.plain_scores,
    ) == (1e6, 1e4, True)
    full = {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.5,
        "rope_theta": 50.0,
        "factor": 2.0,
    }
    local = {"rope_type": "default", "rope_theta": 20.0}
    written = made(rope_parameters={"full_attention": full, "sliding_attention": local})
    assert written.settings.longer == ProportionalRotary(share=0.5, factor=2.0)
    assert (written.settings.rope_base, written.settings.local_rope_base) == (50.0, 20.0)
    assert written.differs == ()
    other = made(
        rope_parameters={
            "full_attention": full,
            "sliding_attention": {**local, "rope_type": "linear", "factor": 2.0},
        }
    )
    assert other.differs == ("rotary positions of kind linear of layers with a window",)


def test_other_families_do_not_turn_in_proportion() -> None:
    plain = {
        name: value
        for name, value in TEXT.items()
        if name not in ("hidden_size_per_layer_input", "layer_types", "sliding_window")
    }
    rope = {"rope_type": "proportional", "rope_theta": 50.0}
    model = model_from_config(
        {**plain, "architectures": ["LlamaForCausalLM"], "rope_parameters": rope}, name="llama"
    )
    assert model.differs == ("rotary positions of kind proportional",)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"per_layer_config": {"0": LISTED, "1": LISTED, "3": LISTED}}, "other layers differ"),
        ({"per_layer_config": {"1": LISTED}}, "other layers differ"),
        ({"per_layer_config": {"1": LISTED, "3": {**LISTED, "head_dim": 8}}}, "among each other"),
        ({"per_layer_config": {"1": 3, "3": 3}}, "other layers differ"),
        (
            {"per_layer_config": {"1": {"intermediate_size": 8}, "3": {"intermediate_size": 8}}},
            "more than head_dim",
        ),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
        (
            {"num_global_key_value_heads": 4, "attention_k_eq_v": True},
            "does not divide the 6 query heads",
        ),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
    ],
)
def test_what_is_not_built_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        made(**fields)


def test_images_of_a_text_alone_see_nothing_else() -> None:
    assert made(use_bidirectional_attention="vision") == made()


def test_a_router_divides_its_scores_by_the_root_of_the_width() -> None:
    model = made(
        **WIDE, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=12
    )
    for router in operators(model, "router"):
        assert router.factors == (48**-0.5,)
    assert {o.kind for o in operators(model, "route")} == {OperatorKind.ROUTE}
