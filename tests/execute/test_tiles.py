"""Cores that no kernel computes hold the scores of a tile at a time, leave out tiles in which no
query sees a key, and find the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.execute.numerics.attention import attention_by_key_block
from shardwright.execute.numerics.attention import split_queries_and_keys_into_tiles as score_tiles
from shardwright.execute.numerics.attention.position_masks import may_see, visibility_mask
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
)
from shardwright.execute.numerics.registry import numerics_of
from shardwright.model.blocks.dense_transformer_operators import core_operator, distance_table
from shardwright.model.ir.operator import AttentionShape, BlockChoice, Mask, Operator
from shardwright.program.layout.tensor_layout import Indices
from tests.execute.lockstep import made_weights, place_of, run
from tests.tiers import chosen, examples, in_proof

LENGTH, SAMPLES = 96, 2
SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=2, value_dim=2)
CHOICE = BlockChoice(size=8, count=3, local=1, heads=2, width=2)
CORES: dict[str, dict[str, Any]] = {
    "window": {"window": 5},
    "window both ways": {"window": 5, "mask": Mask.FULL},
    "chunked": {"window": 5, "chunked": True},
    "cap": {"soft_cap": 2.0},
    "sinks": {"sinks": True},
    "sinks in a window": {"sinks": True, "window": 5},
    "alibi": {"alibi": True},
    "values of another width": {"value_dim": 3},
    "distances": {},
    "distances both ways": {"mask": Mask.FULL},
    "images": {},
    "images in a window": {"window": 5},
    "selected": {"selected": 24},
}
ZIGZAG: tuple[Indices, ...] = (((0, 24), (72, 96)), ((24, 72),))
DEALS: dict[str, tuple[Indices, ...]] = {"": (((0, LENGTH),),), "ring": ZIGZAG, "gather": ZIGZAG}
"""Positions of each device, by the group that brings the others' keys."""
FEW = 400
"""Scores of a tile, for which one tile of all would be 73,728."""
TILE = FEW if in_proof() else 10 * FEW
"""The same where results of tiles are compared with those of one: their number is the time."""
LINEAR = SAMPLES * LENGTH * 4 * 12
"""More elements than any tensor by position has, whatever the cores do."""


def core_of(variant: str) -> Operator:
    table = (
        distance_table("core.distances", buckets=6, heads=SHAPE.heads)
        if "distances" in variant
        else None
    )
    made = core_operator(
        "core", source="rotary", shape=replace(SHAPE, **CORES[variant]), distances=table
    )
    return replace(
        made, sees_images="images" in variant, choice=CHOICE if variant == "selected" else None
    )


class Largest(TorchDispatchMode):
    """The most elements that any tensor has which is made."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):
                self.found = max(self.found, one.numel())
        return made


def _ran(operator: Operator, group: str) -> tuple[list[torch.Tensor], int]:
    """(outputs and all gradients of all devices, elements of the largest tensor)."""
    generator, deal = torch.Generator().manual_seed(4), DEALS[group]
    devices = tuple(range(len(deal)))
    more: dict[str, Any] = (
        {"groups": {group: devices}, "ring_positions": dict(enumerate(deal))} if group else {}
    )
    places = [
        place_of(operator, length=LENGTH, device=d, positions=deal[d], **more) for d in devices
    ]
    whole = [
        torch.randn((SAMPLES, LENGTH, e.size), generator=generator, dtype=torch.float64)
        for e in operator.reads
    ]
    weights = made_weights(operator, generator)
    beside: tuple[Any, ...] = ()
    if operator.sees_images:
        beside = (
            (
                torch.randint(-1, 3, (SAMPLES, LENGTH // 8), generator=generator).repeat_interleave(
                    8, 1
                ),
            ),
        )
    if operator.choice is not None:
        beside = ((torch.randint(-1, LENGTH // 8, (SAMPLES, LENGTH, 6), generator=generator),),)
    inputs = [
        (tuple(one[:, index_tensor(place.positions, like=one)] for one in whole), *beside)
        for place in places
    ]
    grad = torch.randn(
        (SAMPLES, LENGTH, operator.writes[0].size), generator=generator, dtype=torch.float64
    )
    grads = [(grad[:, index_tensor(place.positions, like=grad)],) for place in places]
    numerics = numerics_of(operator)
    with Largest() as largest:
        made = run({d: numerics.forward(places[d], inputs[d], weights) for d in devices})
        back = run(
            {d: numerics.input_grad(places[d], made[d][1], grads[d], weights) for d in devices}
        )
        learnt = run(
            {d: numerics.weight_grad(places[d], made[d][1], grads[d], weights) for d in devices}
        )
    found = [
        one
        for d in devices
        for one in (*made[d][0], made[d][1].own[1], *back[d][0], *learnt[d].values())
    ]
    return found, largest.found


def _few(monkeypatch: pytest.MonkeyPatch, scores: int = FEW) -> None:
    monkeypatch.setattr(score_tiles, "SCORES", scores)
    monkeypatch.setattr(score_tiles, "NARROWEST", 2)


TILED = [(v, g) for v in CORES for g in DEALS if not g or v != "selected"]
QUICK = {
    *(("window", group) for group in DEALS),
    *(("distances", group) for group in DEALS),
    *(pair for pair in TILED if pair[1] == list(DEALS)[list(CORES).index(pair[0]) % 3]),
}
"""What `make test` tries: every core alone, by rings or by gathers in turn, two in all three."""


@pytest.mark.parametrize(("variant", "group"), chosen(TILED, QUICK))
def test_tiles_make_what_one_of_all_scores_does(
    variant: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = core_of(variant)
    expected, before = _ran(operator, group)
    _few(monkeypatch, TILE)
    found, most = _ran(operator, group)
    assert most <= LINEAR < before
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("group", DEALS)
def test_what_a_kernel_computes_holds_no_scores(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = core_operator("core", source="rotary", shape=SHAPE)
    _, most = _ran(operator, group)
    with monkeypatch.context() as patch:
        patch.setattr(attention_by_key_block, "is_fused", lambda *_: False)
        _, before = _ran(operator, group)
    assert most <= LINEAR < before


def test_sums_of_tiles_in_halves_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of many tiles are added in 32 bits."""
    place = place_of(core_of("cap"), length=LENGTH)
    generator = torch.Generator().manual_seed(1)
    inputs = tuple(
        torch.randn((SAMPLES, LENGTH, e.size), generator=generator).bfloat16()
        for e in place.operator.reads
    )
    numerics = numerics_of(place.operator)

    def ran(own: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        made = run({0: numerics.forward(place, (own,), {})})[0]
        back = run({0: numerics.input_grad(place, made[1], (torch.ones_like(made[0][0]),), {})})[0]
        return [*made[0], *back[0]]

    exact = ran(tuple(one.double() for one in inputs))
    _few(monkeypatch)
    for own, other in zip(ran(inputs), exact, strict=True):
        assert own.dtype is torch.bfloat16
        assert (own.double() - other).norm() < 1e-2 * other.norm()


@pytest.mark.parametrize(
    ("variant", "share"),
    [("cap", 0.62), ("window", 0.12), ("chunked", 0.12), ("window both ways", 0.2)],
)
def test_tiles_that_nobody_sees_are_left_out(
    variant: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all scores those that are made."""
    _few(monkeypatch)
    shape, whole = core_of(variant).attention, ((0, LENGTH),)
    assert shape is not None
    made = [
        (some.taken.stop - some.taken.start) * (one.taken.stop - one.taken.start)
        for some, others in score_tiles.score_tiles(
            shape, whole, whole, scores_per_pair=4, images=False
        )
        for one in others
    ]
    assert sum(made) < share * LENGTH**2
    assert max(made) <= FEW // 4


@st.composite
def runs(draw: st.DrawFn) -> Indices:
    borders = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=6)))
    return tuple(draw(st.permutations(list(pairwise(borders))[::2])))


@given(runs(), runs(), st.integers(0, 12), st.booleans(), st.sampled_from(Mask))
@examples(200)
def test_positions_that_meet_are_those_that_are_seen(
    queries: Indices, keys: Indices, window: int, chunked: bool, mask: Mask
) -> None:
    shape = replace(SHAPE, window=window, chunked=bool(window) and chunked, mask=mask)
    like = torch.empty(0)
    asking, asked = index_tensor(queries, like=like).unsqueeze(-1), index_tensor(keys, like=like)
    seen = bool(visibility_mask(shape, asking - asked, asked).any())
    assert may_see(shape, queries, keys, images=False) or not seen
    if not shape.chunked:
        assert may_see(shape, queries, keys, images=False) == seen
    assert may_see(shape, queries, keys, images=True) == bool(
        (asking - asked < (window or 99)).any()
    )


@given(runs(), st.integers(1, 9))
@examples(50)
def test_rows_are_cut_in_turn(positions: Indices, size: int) -> None:
    like = torch.empty(0)
    parts = list(score_tiles.split_rows(positions, size))
    assert [row for part in parts for row in range(part.taken.start, part.taken.stop)] == list(
        range(len(index_tensor(positions, like=like)))
    )
    assert all(part.taken.stop - part.taken.start == size for part in parts[:-1])
    whole = index_tensor(positions, like=like)
    assert all(
        torch.equal(index_tensor(part.positions, like=like), whole[part.taken]) for part in parts
    )
