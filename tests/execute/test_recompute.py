"""Operators that run again: gradients are the same to the last bit, and what the plan drops is gone
between forward and backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.execute.kept import ONE, gradients, saved_bytes, with_lines
from tests.execute.small_plans import PLANS, Small

SLICED = Small(
    body=(
        "lane main samples 2 in 1 slices 4\n  stages embed+1, 1+head on 0, 1\n    all = .\norder"
        " gpipe(main)\n"
    ),
    devices=2,
    batch=2,
)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("one", "recompute 0-: core"),
        pytest.param("one", "recompute 0-: core,act", marks=pytest.mark.proof),
        pytest.param("one", "recompute 0-: attn,mlp", marks=pytest.mark.proof),
        ("one", "recompute 1-2: norm1,up,act,norm2"),
        ("one", "recompute 0-: full"),
        pytest.param("tp and sequence", "recompute 0-: core,act", marks=pytest.mark.proof),
        ("tp and sequence", "recompute 0-: stream,up,act"),
        ("ring", "recompute 0-: core,mlp"),
        ("sliced", "recompute 0-: attn,core"),
        pytest.param("sliced", "recompute 0-: qkv,rotary", marks=pytest.mark.proof),
        ("experts", "recompute 0-: experts"),
        pytest.param("experts", "recompute 0-: experts.act", marks=pytest.mark.proof),
        ("zb-v", "recompute 0-: core,act"),
    ],
)
def test_gradients_are_the_same_and_less_is_kept(name: str, line: str) -> None:
    small = {"one": ONE, "sliced": SLICED}.get(name) or PLANS[name]
    expected, plain = gradients(small)
    found, watched = gradients(with_lines(small, line))
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        assert torch.equal(found[key], gradient), key
    for device, walker in watched.items():
        assert sum(walker.after) < sum(plain[device].after)
        assert not walker.flows


@pytest.mark.parametrize(
    "line",
    ["recompute 0-: core,act", "recompute 0-: up,act", "recompute 1-2: act", "recompute 0-: mlp"],
)
def test_what_is_dropped_is_what_lowering_drops(line: str) -> None:
    """Bytes that one device keeps less, of one microbatch; the runtime's gated activation keeps its
    inputs only."""
    plain, again = ONE, with_lines(ONE, line)
    lowered = saved_bytes(plain, "megatron-core") - saved_bytes(again, "megatron-core")
    kept = [sum(gradients(small)[1][0].after) for small in (plain, again)]
    assert kept[0] - kept[1] == lowered > 0


def test_one_layer_is_made_again_at_a_time() -> None:
    """What lives when a layer goes back: inputs of all, and one layer whole."""
    plain, again = (
        gradients(small)[1][0] for small in (ONE, with_lines(ONE, "recompute 0-: full"))
    )
    layers = 4
    assert again.most < plain.most / 2
    assert again.most - sum(again.after) < 1.5 * (sum(plain.after) - sum(again.after)) / layers
