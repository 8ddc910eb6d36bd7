"""BERT and T5: masks, memory and the DAG of runs."""

from __future__ import annotations

import pytest

from shardwright.model.ir.operator import Mask
from tests.model.extra_reference import block_of, changed, model_of, operator_of, pattern, refusal


def test_bert_sees_both_sides_and_norms_behind() -> None:
    block = block_of(model_of("bert"), "layer")
    core = operator_of(block, "core").attention
    assert core is not None
    assert core.mask is Mask.FULL
    assert block.operators[-1].name == "norm2"
    assert operator_of(block, "residual2").inputs == ("down", "norm1")


def test_t5_is_two_chains_that_meet_in_every_decoder_layer() -> None:
    model = model_of("t5")
    assert [(r.name, r.count, r.inputs) for r in model.runs] == [
        ("encoder_embed", 1, ()),
        ("encoder", 4, ("encoder_embed",)),
        ("encoder_norm", 1, ("encoder",)),
        ("embed", 1, ()),
        ("decoder", 3, ("embed", "encoder_norm")),
        ("head", 1, ("decoder",)),
    ]
    decoder = block_of(model, "decoder")
    assert (decoder.sequence, decoder.memory) == ("text", "encoder")
    assert {b.sequence for b in model.blocks if b.name.startswith("encoder")} == {"encoder"}


def test_cross_attention_reads_the_memory() -> None:
    decoder = block_of(model_of("t5"), "decoder")
    cross, own = (
        operator_of(decoder, "cross.core").attention,
        operator_of(decoder, "core").attention,
    )
    assert cross is not None
    assert own is not None
    assert (cross.cross, own.cross) == (True, False)
    assert (cross.mask, own.mask) == (Mask.FULL, Mask.CAUSAL)
    assert operator_of(decoder, "cross.kv").inputs == ("memory",)
    assert operator_of(decoder, "norm2").inputs == ("cross.residual",)
    assert operator_of(decoder, "residual2").inputs == ("down", "cross.residual")


def test_t5_ties_and_gates() -> None:
    untied = model_of("t5").num_parameters
    assert untied - changed("t5", tie_word_embeddings=True).num_parameters == 100 * 48
    assert untied - changed("t5", feed_forward_proj="relu").num_parameters == 7 * 48 * 80
    assert pattern(changed("t5", num_decoder_layers=None))[4] == ("decoder", 4)


@pytest.mark.parametrize(
    ("name", "fields", "named"),
    [
        ("t5", {"d_kv": None}, "d_kv"),
        ("t5", {"feed_forward_proj": "swish"}, "feed_forward_proj"),
        ("t5", {"num_layers": 0}, "num_layers"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"hidden_size": 50}, "hidden_size"),
    ],
)
def test_errors_name_the_field(name: str, fields: dict[str, object], named: str) -> None:
    assert named in refusal(name, **fields)
