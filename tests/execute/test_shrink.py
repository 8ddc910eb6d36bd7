"""Small models keep what a plan cuts."""

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.proof.model_with_divided_widths import (
    largest_divisor,
    narrower_model,
    narrowest_model,
)
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.operator import OperatorKind
from shardwright.strategy.text.parse_plan import parse_plan
from tests.strategy.zoo_models import dense

WIDE = """plan wide devices 128
lane main samples 4 in 4
  stages embed+4+head on 0
    all = b2 x64
    mlp = x2 d64
    head = v128
order 1f1b(main)
"""


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "deepseek-v3", "nemotron-3-nano", "qwen3-next-80b-a3b"]
)
def test_counts_stay_and_widths_are_divided(name: str) -> None:
    model = load_model(name)
    small, divisor = narrower_model(model), largest_divisor(model)
    assert divisor > 1
    assert small.hidden * divisor == model.hidden
    assert [run.count for run in small.runs] == [run.count for run in model.runs]
    pairs = [
        (a, b)
        for x, y in zip(model.blocks, small.blocks, strict=True)
        for a, b in zip(x.operators, y.operators, strict=True)
    ]
    for one, other in pairs:
        assert (one.attention is None) == (other.attention is None)
        if one.attention is not None and other.attention is not None:
            assert (other.attention.heads, other.attention.kv_heads) == (
                one.attention.heads,
                one.attention.kv_heads,
            )
            assert other.attention.head_dim * divisor == one.attention.head_dim
        assert one.experts == other.experts
        if one.kind is OperatorKind.CONV:
            assert [p.extents[1:] for p in one.parameters] == [
                p.extents[1:] for p in other.parameters
            ], "taps stay"
    assert small.num_parameters < model.num_parameters / divisor


def test_widths_and_vocabulary_have_a_run_for_every_part() -> None:
    model = dense(layers=4)
    small = narrowest_model(parse_plan(WIDE, model=model), model=model)
    ffn = max(
        e.size
        for b in small.blocks
        for o in b.operators
        for e in o.writes
        if e.dim.value == "f" or e.dim.name == "FFN"
    )
    assert ffn >= 64
    assert small.vocab == 128
    assert narrower_model(model).vocab == 64
