from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.plan.operator_split_tree import Split, devices_of, num_leaves
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.split_tree_span_and_leaf_overlap import depth, device_span, overlaps
from shardwright.strategy.plan.token_intervals_of_devices import (
    TokenPiece,
    cut_intervals,
    device_tokens,
)
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.verify.check_structural_plan_rules import require_valid, verify
from tests.strategies import dense_model, trees
from tests.strategy.broken_plans import BASE, EXPERTS
from tests.tiers import examples

DENSE = dense_model()


def _deep(plan: Plan) -> Plan:
    tree: Split | None = None
    for _ in range(40):
        tree = Split(dim=Dim.REPLICATE, parts=1, step=1, children=(tree,))
    return _with_tree(plan, tree)


def _with_tree(plan: Plan, tree: Split | None) -> Plan:
    lane = plan.lanes[0]
    stages = tuple(
        replace(s, placements=(replace(s.placements[0], split=tree),)) for s in lane.stages
    )
    return replace(plan, lanes=(replace(lane, stages=stages),))


def test_violations_say_where() -> None:
    plan = parse_plan(BASE.replace("4+head", "3+head").replace("stream = b2 s2", "stream = b2 t2"))
    found = verify(plan, model=DENSE, global_batch=8)
    assert [(v.rule, v.path) for v in found] == [
        ("stage.coverage", "lane main"),
        ("split.unused-dim", "lane main / stage 0 / stream"),
    ]
    assert all(v.message and v.hint for v in found)
    with pytest.raises(
        StrategyError, match=r"lane main: layers: 7 of 8 blocks .* \[stage.coverage\]"
    ) as error:
        require_valid(plan, model=DENSE, global_batch=8)
    assert error.value.rule == "stage.coverage"


def test_huge_trees_are_refused_without_listing_them() -> None:
    plan = _with_tree(
        parse_plan(BASE),
        Split(
            dim=Dim.REPLICATE,
            parts=2**30,
            step=0,
            children=(Split(dim=Dim.BATCH, parts=2**30, step=1),),
        ),
    )
    assert "split.devices-overlap" in [v.rule for v in verify(plan, model=DENSE, global_batch=8)]


@examples(70, 1000)
@given(tree=trees(leaves=10))
def test_tree_questions_agree_with_the_leaves(tree: Split | None) -> None:
    if num_leaves(tree) > 5000:
        return
    devices = devices_of(tree)
    assert device_span(tree) == max(devices)
    assert overlaps(tree) == (len(set(devices)) != len(devices))
    assert depth(tree) >= 0


def _measure(intervals: tuple[tuple[Fraction, Fraction], ...]) -> Fraction:
    return sum((high - low for low, high in intervals), Fraction(0))


@examples(35, 500)
@given(parts=st.lists(st.integers(1, 4), min_size=1, max_size=3), zigzag=st.booleans())
def test_cuts_are_disjoint_and_whole(parts: list[int], zigzag: bool) -> None:
    pieces: list[tuple[tuple[Fraction, Fraction], ...]] = [((Fraction(0), Fraction(1)),)]
    for n in parts:
        pieces = [
            part
            for piece in pieces
            for part in cut_intervals(piece, (Fraction(1, n),) * n, zigzag=zigzag)
        ]
    flat = sorted(interval for piece in pieces for interval in piece)
    assert flat[0][0] == 0
    assert flat[-1][1] == 1
    assert all(a[1] == b[0] for a, b in pairwise(flat))
    assert len({_measure(piece) for piece in pieces}) == 1


@examples(35, 500)
@given(outer=st.integers(1, 5), inner=st.integers(1, 5))
def test_a_zigzag_of_a_zigzag_is_one_zigzag(outer: int, inner: int) -> None:
    whole = ((Fraction(0), Fraction(1)),)
    twice = [
        p
        for o in cut_intervals(whole, (Fraction(1, outer),) * outer, zigzag=True)
        for p in cut_intervals(o, (Fraction(1, inner),) * inner, zigzag=True)
    ]
    n = outer * inner
    assert [tuple(sorted(p)) for p in twice] == [
        tuple(sorted(p)) for p in cut_intervals(whole, (Fraction(1, n),) * n, zigzag=True)
    ]


def test_regions_of_a_ring() -> None:
    tree = (
        parse_plan(EXPERTS.replace("all = b4 t2", "all = b2 s2z t2"))
        .lanes[0]
        .stages[0]
        .placements[0]
        .split
    )
    found = dict(device_tokens(tree))
    half, quarter = Fraction(1, 2), Fraction(1, 4)
    assert (
        found[0]
        == found[1]
        == TokenPiece(
            batch=(Fraction(0), half), sequence=((Fraction(0), quarter), (3 * quarter, Fraction(1)))
        )
    )
    assert found[6].sequence == ((quarter, 3 * quarter),)
    assert found[0].inside(TokenPiece())
    assert not found[0].inside(found[2])
