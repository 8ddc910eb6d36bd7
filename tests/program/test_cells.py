"""Cells: parts by largest remainder, zigzag pairs, key heads under query heads, cuts of cuts, and
which tree a class runs under."""

from __future__ import annotations

from random import Random

import pytest

from shardwright.errors import StrategyError
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.layout.device_cuts_in_placement_tree import (
    class_trees,
    leaves,
    stage_cells,
)
from shardwright.program.layout.device_parts_of_dims import token_box
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import (
    AxisStep,
    covered_runs,
    cut,
    indices,
    largest_remainder,
)
from shardwright.strategy.text.parse_plan import parse_plan
from tests.program.placed import layer_of, on_device, operator_of
from tests.strategy.splits import parse_split
from tests.strategy.zoo_models import dense


@pytest.mark.parametrize(
    ("runs", "weights", "sizes"),
    [
        (10, (1, 1, 1), (4, 3, 3)),
        (7, (2, 1), (5, 2)),
        (2, (1, 1, 1), (1, 1, 0)),
        (16, (3, 1), (12, 4)),
        (5, (1, 3), (1, 4)),
        (0, (1, 2), (0, 0)),
    ],
)
def test_largest_remainder(runs: int, weights: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    assert largest_remainder(runs, weights) == sizes


def test_shares_are_within_one_of_exact() -> None:
    generator = Random(3)
    for _ in range(200):
        runs, weights = (
            generator.randrange(100),
            tuple(generator.randint(1, 9) for _ in range(generator.randint(1, 7))),
        )
        sizes = largest_remainder(runs, weights)
        assert sum(sizes) == runs
        assert all(
            abs(size * sum(weights) - runs * w) < sum(weights)
            for size, w in zip(sizes, weights, strict=True)
        )


def test_zigzag_deals_pairs_from_both_ends() -> None:
    assert [cut(((0, 8),), AxisStep(parts=2, index=i, zigzag=True)) for i in (0, 1)] == [
        ((0, 2), (6, 8)),
        ((2, 6),),
    ]
    assert [cut(((0, 8),), AxisStep(parts=(3, 1), index=i, zigzag=True)) for i in (0, 1)] == [
        ((0, 3), (5, 8)),
        ((3, 5),),
    ]


def test_zigzag_parts_see_equally_many_causal_keys() -> None:
    """Sum of positions of each part: the same for all, where blocks differ by n - 1 to 1."""
    sums = [
        sum(
            p
            for a, b in indices((AxisStep(parts=4, index=i, zigzag=True),), 64)
            for p in range(a, b)
        )
        for i in range(4)
    ]
    assert len(set(sums)) == 1


def test_a_cut_of_a_cut_divides_the_parents_list() -> None:
    assert [
        indices((AxisStep(parts=2, index=1), AxisStep(parts=3, index=i)), 16) for i in range(3)
    ] == [
        ((8, 11),),
        ((11, 14),),
        ((14, 16),),
    ]
    # The second cut counts along both pieces of a zigzag part.
    assert indices((AxisStep(parts=2, index=0, zigzag=True), AxisStep(parts=2, index=1)), 8) == (
        (6, 8),
    )
    assert indices((AxisStep(parts=(1, 3), index=1), AxisStep(parts=2, index=0)), 16) == ((4, 10),)


@pytest.mark.parametrize(
    "text", ["t[3:1]{h2, .+2}", "b2 s3z", "s[1:2]{b2, h3+2}", "x2 s[2:1:1]z{., .+1, b2+2}"]
)
def test_leaves_tile_samples_and_positions(text: str) -> None:
    """Each (sample, position, head) is on as many devices as the tree copies it: all on equally
    many."""
    split = parse_split(text)
    held: dict[tuple[int, int, int], int] = {}
    for _, cell, _ in leaves(split, 0):
        samples, positions = token_box(cell, samples=6, length=24)
        heads = indices(cell.way(Dim.HEADS, Dim.WIDTH), 12)
        for place in (
            (b, s, h)
            for x, y in samples
            for b in range(x, y)
            for u, v in positions
            for s in range(u, v)
            for p, q in heads
            for h in range(p, q)
        ):
            held[place] = held.get(place, 0) + 1
    assert len(held) == 6 * 24 * 12
    assert set(held.values()) == {2 if "x2" in text else 1}


def test_key_heads_are_the_image_of_query_heads() -> None:
    """32 query heads, 4 key heads, 8 parts: two parts a key head; 16 and 4 in 3 parts: the middle
    one needs two key heads."""
    assert [covered_runs((AxisStep(parts=8, index=i),), 4, 32) for i in range(8)] == [
        (i // 2, i // 2 + 1) for i in range(8)
    ]
    assert [covered_runs((AxisStep(parts=3, index=i),), 4, 16) for i in range(3)] == [
        (0, 2),
        (1, 3),
        (2, 4),
    ]
    assert covered_runs((AxisStep(parts=(3, 1), index=1),), 4, 16) == (3, 4)


def test_weighted_heads() -> None:
    """t[3:1] of 16 query and 8 key heads of 8: 12 and 6, 4 and 2."""
    layer = layer_of(dense(), "all = t[3:1]{., .+1}", devices=2, layers=8)
    qkv = operator_of(layer, "qkv")
    assert [[on_device(layer, d).part(e, qkv).times for e in qkv.writes] for d in (0, 1)] == [
        [96, 48, 48],
        [32, 16, 16],
    ]


PLAN = """plan trees devices 4
lane main samples 8 in 1
  stages embed+8+head on 0
    all = t4
    all[2-3] = b4
    core = h2 s2
    mlp[3-3] = x4
order gpipe(main)
"""


def test_later_placements_override_earlier_ones() -> None:
    placements = parse_plan(PLAN).lanes[0].stages[0].placements
    kinds = {}
    for block in (None, 0, 2, 3):
        trees = {t.klass: t.split for t in class_trees(placements, block)}
        kinds[block] = tuple(
            trees[k] for k in (OperatorClass.ATTN, OperatorClass.CORE, OperatorClass.MLP)
        )
    wide, batch, core, copies = (parse_split(t) for t in ("t4", "b4", "h2 s2", "x4"))
    assert kinds[None] == kinds[0] == (wide, core, wide)
    assert kinds[2] == (batch, core, batch)
    assert kinds[3] == (batch, core, copies)


def test_families_are_told_apart_by_unequal_choices_alone() -> None:
    trees = class_trees(
        parse_plan(PLAN.replace("all = t4", "all = b[3:1]{t3, .+3}"))
        .lanes[0]
        .stages[0]
        .placements[:1],
        0,
    )
    assert list(map(tuple, stage_cells(trees, samples=8).families)) == [(0, 1, 2), (3,)]
    assert list(map(tuple, stage_cells(trees, samples=8, unfolded=True).families)) == [
        (0,),
        (1,),
        (2,),
        (3,),
    ]


def test_cut_keys_are_refused() -> None:
    placements = (
        parse_plan(PLAN.replace("core = h2 s2", "core = h2 c2")).lanes[0].stages[0].placements
    )
    with pytest.raises(StrategyError) as caught:
        stage_cells(class_trees(placements, 0), samples=8)
    assert caught.value.rule == "lower.context"
