"""PyTorch's fused core, forward and backward, against the core that is built up block by block of
keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.numerics.attention import attention_by_key_block
from shardwright.execute.numerics.attention.fused_attention import fused_attention, is_fused
from shardwright.execute.numerics.attention.fused_calls_covering_causal_mask import (
    kernel_calls as calls_of,
)
from shardwright.execute.numerics.attention.fused_torch_kernels import CpuFlash
from shardwright.execute.numerics.attention.key_value_exchange import KeyBlock
from shardwright.execute.numerics.attention.merge_fused_attention_calls import (
    key_block_gradients,
    merge_key_block,
)
from shardwright.execute.numerics.registry import numerics_of
from shardwright.model.blocks.dense_transformer_operators import core_operator
from shardwright.model.ir.operator import AttentionShape, Mask
from shardwright.program.layout.tensor_layout import Indices, count
from tests.execute.lockstep import place_of, run

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


RINGS: dict[str, tuple[Indices, ...]] = {
    "blocks": (((0, 30),), ((30, 70),)),
    "zigzag": (((0, 17), (53, 70)), ((17, 53),)),
    "many": (((0, 9), (60, 70)), ((9, 10), (44, 60)), ((10, 44),)),
}
"""Positions of each device."""


def _made(shape: AttentionShape, **place: Any) -> tuple[Any, Any, list[torch.Tensor]]:
    operator = core_operator("core", source="rotary", shape=shape)
    here = place_of(operator, length=70, **place)
    generator = torch.Generator().manual_seed(5)
    return here, generator, _drawn(here, generator)


def _drawn(place: Any, generator: torch.Generator) -> list[torch.Tensor]:
    """Queries, keys and values of a device."""
    counts = (count(place.positions), *(count(place.key_positions or place.positions),) * 2)
    reads = place.operator.reads
    return [
        torch.randn((2, n, e.size), generator=generator, dtype=torch.float64)
        for n, e in zip(counts, reads, strict=True)
    ]


def _ran(places: list[Any], inputs: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Output, logarithm of the denominator, and gradients, of all devices."""
    numerics = numerics_of(places[0].operator)
    made = run(
        {
            p.device: numerics.forward(p, (tuple(own),), {})
            for p, own in zip(places, inputs, strict=True)
        }
    )
    generator = torch.Generator().manual_seed(7)
    grads = [
        torch.randn(made[p.device][0][0].shape, generator=generator, dtype=torch.float64)
        for p in places
    ]
    tasks = {
        p.device: numerics.input_grad(p, made[p.device][1], (g.to(i[0].dtype),), {})
        for p, g, i in zip(places, grads, inputs, strict=True)
    }
    back = run(tasks)
    return [
        t
        for p in places
        for t in (*made[p.device][0], made[p.device][1].own[1], *back[p.device][0])
    ]


def _built(
    places: list[Any], inputs: list[list[torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> list[torch.Tensor]:
    """The same from the scores themselves."""
    with monkeypatch.context() as patch:
        patch.setattr(attention_by_key_block, "is_fused", lambda *_: False)
        return _ran(places, inputs)


def _alike(found: list[torch.Tensor], expected: list[torch.Tensor], near: float = 1e-12) -> None:
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own.to(other.dtype), other, rtol=near, atol=near)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of the processor's kernel, as they are made."""
    found: list[str] = []
    for name in ("forward", "backward"):
        own = getattr(CpuFlash, name)

        def counted(*asked: Any, own: Any = own, name: str = name, **more: Any) -> Any:
            found.append(name)
            return own(*asked, **more)

        monkeypatch.setattr(CpuFlash, name, counted)
    return found


@pytest.mark.parametrize("variant", FUSED)
def test_the_fused_core_is_the_one_that_is_built_up(
    variant: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _, inputs = _made(replace(SHAPE, **FUSED[variant]))
    assert is_fused(place, tuple(inputs))
    found = _ran([place], [inputs])
    assert calls == ["forward", "backward"]
    _alike(found, _built([place], [inputs], monkeypatch))
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("group", ["ring", "gather"])
@pytest.mark.parametrize("deal", RINGS)
@pytest.mark.parametrize("variant", FUSED)
def test_divided_positions_are_fused(
    variant: str, deal: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, inputs = _divided(replace(SHAPE, **FUSED[variant]), RINGS[deal], group)
    assert all(is_fused(place, tuple(own)) for place, own in zip(places, inputs, strict=True))
    _alike(_ran(places, inputs), _built(places, inputs, monkeypatch))


def _divided(
    shape: AttentionShape, deal: tuple[Indices, ...], group: str
) -> tuple[list[Any], list[list[torch.Tensor]]]:
    devices = tuple(range(len(deal)))
    more: dict[str, Any] = {"groups": {group: devices}, "ring_positions": dict(enumerate(deal))}
    made = [_made(shape, device=d, positions=deal[d], **more) for d in devices]
    generator = torch.Generator().manual_seed(3)
    return [place for place, *_ in made], [_drawn(place, generator) for place, *_ in made]


def test_a_ring_in_halves_is_as_near_as_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """What joins over blocks of keys is summed in 32 bits; keys and their gradients travel in
    16."""
    places, inputs = _divided(SHAPE, RINGS["many"], "ring")
    halves = [[one.bfloat16() for one in own] for own in inputs]
    exact = [[one.double() for one in own] for own in halves]
    found, expected = _ran(places, halves), _built(places, exact, monkeypatch)
    assert {one.dtype for one in found} == {torch.bfloat16, torch.float32}
    _alike(found, expected, 3e-2)


def test_many_calls_in_halves_are_summed_in_32_bits() -> None:
    """255 calls for queries whose runs fall: summed in 16 bits, gradients of keys are 1 % off."""
    positions, kernel, scale = (
        tuple((low, low + 4) for low in range(508, -1, -4)),
        CpuFlash(),
        0.3,
    )
    asked = calls_of(positions, positions, causal=True)
    generator = torch.Generator().manual_seed(0)
    *heads, grad = (
        torch.randn((1, 512, 2, 16), generator=generator).bfloat16().transpose(1, 2)
        for _ in range(4)
    )

    def ran(dtype: torch.dtype) -> list[torch.Tensor]:
        query, key, value = (one.to(dtype) for one in heads)
        out, normal = merge_key_block(kernel, (query, key, value), asked, None, scale=scale)
        made = out.to(dtype), normal
        return [
            made[0],
            *key_block_gradients(
                kernel, (query, key, value), asked, made, grad.to(dtype), scale=scale
            ),
        ]

    for own, exact in zip(ran(torch.bfloat16), ran(torch.float64), strict=True):
        assert (own.double() - exact).norm() < 4e-3 * exact.norm()


@pytest.mark.parametrize(
    ("positions", "keys", "count_of_calls"),
    [
        (((0, 70),), (), 1),
        (((0, 20), (50, 100)), (), 1),
        (((50, 100), (0, 20)), (), 3),
        (((40, 70),), ((0, 70),), 2),
        (((69, 70),), ((0, 70),), 1),
        (((20, 60),), ((0, 5), (30, 50), (80, 90)), 3),
        (((10, 20),), ((30, 40),), 0),
    ],
)
def test_a_causal_core_of_other_positions(
    positions: Indices,
    keys: Indices,
    count_of_calls: int,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of runs that do not rise, and keys of earlier slices; queries that see no key have
    zeros."""
    place, _, inputs = _made(SHAPE, positions=positions, key_positions=keys)
    assert is_fused(place, tuple(inputs))
    found = _ran([place], [inputs])
    assert calls == ["forward"] * count_of_calls + ["backward"] * count_of_calls
    _alike(found, _built([place], [inputs], monkeypatch))


def test_scores_are_scaled_as_asked() -> None:
    place, _, (query, key, value) = _made(SHAPE)
    keys = KeyBlock(key=key, value=value, positions=place.positions)
    plain, _ = fused_attention(place, query, keys, None, scale=0.5)
    turned, _ = fused_attention(place, query * 2, keys, None, scale=0.25)
    torch.testing.assert_close(plain, turned, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", OTHERS)
def test_cores_that_the_kernel_does_not_compute(variant: str) -> None:
    place, _, inputs = _made(replace(SHAPE, **OTHERS[variant]))
    assert not is_fused(place, tuple(inputs))


def test_parts_of_other_formats_or_without_rows_are_not_fused() -> None:
    whole, _, inputs = _made(SHAPE)
    assert not is_fused(whole, (inputs[0], inputs[1].float(), inputs[2]))
    assert not is_fused(whole, tuple(part[:0] for part in inputs))


def test_heads_that_share_no_key_head_evenly_are_not_fused() -> None:
    """Of six query heads and three key heads, queries 1 to 3 read keys 0 and 1: once, and twice."""
    shape = replace(SHAPE, heads=6, kv_heads=3)
    place, _, inputs = _made(shape)
    assert is_fused(place, tuple(inputs))
    assert not is_fused(replace(place, heads=(1, 4), kv_heads=(0, 2)), tuple(inputs))
    assert is_fused(replace(place, heads=(2, 6), kv_heads=(1, 3)), tuple(inputs))
