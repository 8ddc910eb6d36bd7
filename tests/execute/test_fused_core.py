"""PyTorch's fused core, forward and backward, against the core that is built up block by block of keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.numerics import attention
from shardwright.execute.numerics.fused_core import fused, is_fused
from shardwright.execute.numerics.registry import numerics_of
from shardwright.model.blocks.dense import core_operator
from shardwright.model.ir.operator import AttentionShape, Mask
from tests.execute.lockstep import alone, made_weights, place_of

SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=6, value_dim=6)
FUSED: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"mask": Mask.FULL},
    "many queries a key": {"kv_heads": 1},
    "one query a key": {"kv_heads": 4},
}
OTHERS: dict[str, dict[str, Any]] = {
    "window": {"window": 3},
    "chunked": {"window": 3, "chunked": True},
    "cap": {"soft_cap": 2.0},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "values of another width": {"value_dim": 3},
}


def _made(shape: AttentionShape, **place: Any) -> tuple[Any, Any, list[torch.Tensor]]:
    operator = core_operator("core", source="rotary", shape=shape)
    here = place_of(operator, length=70, **place)
    generator = torch.Generator().manual_seed(5)
    return here, generator, [torch.randn((2, 70, e.size), generator=generator, dtype=torch.float64) for e in operator.reads]


def _ran(place: Any, generator: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Output, logarithm of the denominator, and gradients."""
    numerics, weights = numerics_of(place.operator), made_weights(place.operator, torch.Generator().manual_seed(2))
    (out,), saved = alone(numerics.forward(place, (tuple(inputs),), weights))
    grad = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    (back,) = alone(numerics.input_grad(place, saved, (grad,), weights))
    return [out, saved.own[1], *back]


@pytest.mark.parametrize("variant", FUSED)
def test_the_fused_core_is_the_one_that_is_built_up(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, generator, inputs = _made(replace(SHAPE, **FUSED[variant]))
    assert is_fused(place, tuple(inputs))
    state = generator.get_state()
    found = _ran(place, generator, inputs)
    monkeypatch.setattr(attention, "is_fused", lambda *_: False)
    expected = _ran(place, generator.set_state(state), inputs)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


def test_scores_are_scaled_as_asked() -> None:
    place, _, inputs = _made(SHAPE)
    plain, _ = fused(place, tuple(inputs), scale=0.5)
    turned, _ = fused(place, (inputs[0] * 2, inputs[1], inputs[2]), scale=0.25)
    torch.testing.assert_close(plain, turned, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", OTHERS)
def test_cores_that_the_kernel_does_not_compute(variant: str) -> None:
    place, _, inputs = _made(replace(SHAPE, **OTHERS[variant]))
    assert not is_fused(place, tuple(inputs))


def test_a_causal_core_is_fused_where_its_keys_are_those_of_its_queries() -> None:
    whole, _, inputs = _made(SHAPE)
    parts = tuple(inputs)
    assert is_fused(replace(whole, positions=((0, 20), (50, 100))), parts)
    assert not is_fused(replace(whole, positions=((50, 100), (0, 20))), parts)
    assert not is_fused(replace(whole, key_positions=((0, 90),)), parts)
    assert not is_fused(replace(whole, groups={"ring": (0, 1)}), parts)
    assert not is_fused(whole, (inputs[0], inputs[1].float(), inputs[2]))
    assert not is_fused(whole, tuple(part[:0] for part in inputs))


def test_heads_that_share_no_key_head_evenly_are_not_fused() -> None:
    """Of six query heads and three key heads, queries 1 to 3 read keys 0 and 1: once, and twice."""
    shape = replace(SHAPE, heads=6, kv_heads=3)
    place, _, inputs = _made(shape)
    assert is_fused(place, tuple(inputs))
    assert not is_fused(replace(place, heads=(1, 4), kv_heads=(0, 2)), tuple(inputs))
    assert is_fused(replace(place, heads=(2, 6), kv_heads=(1, 3)), tuple(inputs))
