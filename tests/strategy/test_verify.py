from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.model.tensor import Dim
from shardwright.strategy.parser import parse_plan
from shardwright.strategy.plan import Plan
from shardwright.strategy.split import Split, devices_of, num_leaves
from shardwright.strategy.token_regions import Region, cut, regions
from shardwright.strategy.tree_shape import depth, most_parts, overlaps, span
from shardwright.strategy.verify import RULES, require_valid, verify
from tests.strategies import dense_model, expert_model, trees

DENSE, SPARSE = dense_model(), expert_model()
BASE = """plan base devices 8
zero all: all/1/1
lane main samples 8 in 4
  stages embed+4, 4+head on 0, 4
    all = b2 t2
    stream = b2 s2
    recompute 0-1: core
order 1f1b(main)
"""
TABLE = """plan pairs devices 2
lane main samples 2 in 2
  stages embed+4, 4+head on 0, 1
    all = .
order table(main)
  0: 0F0 0F1 0B0 0B1
  1: 1F0 1B0 (1F1|1I1) 1W1
"""
TWO_LANES = """plan lanes devices 4
lane a samples 4 in 4
  stages embed+8+head on 0
    all = t2
lane b samples 4 in 4
  stages embed+8+head on 2
    all = t2
order 1f1b(a)
order 1f1b(b)
"""
SPREAD = """plan spread devices 2
lane main samples 1 in 1
  stages embed on 0
    all = v2
  stages 8 on 0
    all = .
  stages head on 0
    all = v2
order table(main)
  0: 0F0 1F0 2F0 2B0 1B0 0B0
  1: 0F0 2F0 2B0 0B0
"""
EXPERTS = """plan experts devices 8
lane main samples 8 in 1
  stages embed+8+head on 0
    all = b4 t2
    stream,router = b4 s2
    experts = b2 e2 f2
order 1f1b(main)
"""
# rule, text, (old, new): the change breaks that rule and no other
BREAKERS = [
    ("plan.devices", BASE, ("on 0, 4", "on 0, 5")),
    ("lane.name", TWO_LANES.replace("order 1f1b(b)\n", ""), ("lane b", "lane a")),
    ("lane.samples", BASE, ("samples 8 in 4", "samples 12 in 4")),
    ("lane.samples", BASE, ("samples 8 in 4", "samples 8 in 3")),
    ("stage.item", BASE, ("embed+4,", "embedd+4,")),
    ("stage.item", BASE, ("+head", "+head.logit")),
    ("stage.item", BASE, ("4+head", "layers+head")),
    ("stage.coverage", BASE, ("+head", "+head.logits")),
    ("stage.coverage", BASE, ("4+head", "3+head")),
    ("stage.coverage", BASE, ("4+head", "5+head")),
    ("stage.coverage", BASE, ("4+head", "4+head.logits+head.norm")),
    ("stage.topology", BASE, ("embed+4,", "4+embed,")),
    ("stage.topology", BASE, ("4+head", "4+head.logits+head.norm+head.loss")),
    ("stage.every", BASE, ("on 0, 4", "on 0, 4 every 3")),
    ("placement.class", BASE, ("stream =", "streem =")),
    ("placement.unused", BASE, ("stream =", "experts = b2 f2\n stream =")),
    ("placement.blocks", BASE, ("stream =", "mlp[2-4] = b2 t2\n stream =")),
    ("placement.missing", BASE, ("all =", "attn,core,mlp,embed =")),
    ("split.unused-dim", BASE, ("stream = b2 s2", "stream = b2 t2")),
    ("split.unused-dim", BASE, ("all =", "mlp = b2 h2\n all =")),
    ("split.zigzag", BASE, ("all = b2 t2", "all = b2z t2")),
    ("split.devices-overlap", BASE, ("stream = b2 s2", "stream = b2@1 s2@1")),
    ("split.batch", BASE, ("all = b2 t2", "all = b4 ")),
    ("core.exchange", BASE, ("all = b2 t2", "all = b2 s2")),
    ("core.exchange", BASE, ("all = b2 t2", "all = b2 t2 via ring")),
    ("keep.blocks", BASE, ("0-1: core", "0-4: core")),
    ("keep.operators", BASE, ("0-1: core", "0-1: cores")),
    ("keep.share", BASE, ("0-1: core", "0-1 0%: core")),
    ("keep.overlap", BASE, ("recompute 0-1: core", "recompute 0-1: core\n host 1-2: core")),
    ("shards.class", BASE, ("zero all:", "zero attn:")),
    ("shards.degrees", BASE, ("all/1/1", "1/all/1")),
    ("shards.degrees", BASE, ("all/1/1", "6/4/1")),
    ("shards.degrees", BASE, ("all/1/1", "16/1/1")),
    ("shards.host", BASE, ("all/1/1", "all/1/1 host=opt:0")),
    ("order.lanes", BASE, ("1f1b(main)", "1f1b(mian)")),
    ("order.lanes", BASE, ("order 1f1b(main)", "")),
    ("order.joint", TWO_LANES, ("on 2", "on 1")),
    ("order.rows", TABLE, ("  1: 1F0", "  2: 1F0")),
    ("order.actions", TABLE, ("0F1 0B0", "0F0 0B0")),
    ("order.actions", TABLE, ("0F1 0B0", "1F1 0B0")),
    ("order.actions", TABLE, ("1W1", "1B1")),
    ("order.rendezvous", SPREAD, ("1: 0F0 2F0 2B0 0B0", "1: 2F0 0F0 2B0 0B0")),
    ("experts.coset", EXPERTS, ("experts = b2 e2 f2", "experts = b2@2 e2@4 f2")),
    ("experts.coset", EXPERTS, ("experts = b2 e2 f2", "experts = s2 e2 f2")),
]


def _check(text: str, *, batch: int = 8) -> list[str]:
    plan = parse_plan(text)
    model = SPARSE if ("experts = b" in text.partition("order")[0] and "plan experts" in text) or "experts = s" in text else DENSE
    return [v.rule for v in verify(plan, model=model, global_batch=sum(lane.samples for lane in plan.lanes) if batch == 0 else batch)]


@pytest.mark.parametrize(("text", "batch"), [(BASE, 8), (TABLE, 2), (TWO_LANES, 8), (SPREAD, 1), (EXPERTS, 8)])
def test_the_plans_to_break_are_valid(text: str, batch: int) -> None:
    assert _check(text, batch=batch) == []


@pytest.mark.parametrize(("rule", "text", "change"), BREAKERS)
def test_each_rule_has_a_plan_that_breaks_it_alone(rule: str, text: str, change: tuple[str, str]) -> None:
    assert change[0] in text
    batch = {TABLE: 2, SPREAD: 1}.get(text, 8)
    assert set(_check(text.replace(change[0], change[1], 1), batch=batch)) == {rule}


def _deep(plan: Plan) -> Plan:
    tree: Split | None = None
    for _ in range(40):
        tree = Split(dim=Dim.REPLICATE, parts=1, step=1, children=(tree,))
    return _with_tree(plan, tree)


def _with_tree(plan: Plan, tree: Split | None) -> Plan:
    lane = plan.lanes[0]
    stages = tuple(replace(s, placements=(replace(s.placements[0], split=tree),)) for s in lane.stages)
    return replace(plan, lanes=(replace(lane, stages=stages),))


def test_rules_that_text_cannot_break() -> None:
    plan = parse_plan(BASE)
    assert [v.rule for v in verify(_deep(plan), model=DENSE, global_batch=8)] == ["split.depth"]
    slices = replace(plan, lanes=(replace(plan.lanes[0], slices=(1, 0)),))
    assert [v.rule for v in verify(slices, model=DENSE, global_batch=8)] == ["lane.slices"]
    assert "plan.lanes" in [v.rule for v in verify(replace(plan, lanes=(), orders=()), model=DENSE, global_batch=8)]


def test_every_rule_is_tested() -> None:
    assert {rule for rule, *_ in BREAKERS} | {"split.depth", "lane.slices", "plan.lanes"} == set(RULES)


def test_violations_say_where() -> None:
    plan = parse_plan(BASE.replace("4+head", "3+head").replace("stream = b2 s2", "stream = b2 t2"))
    found = verify(plan, model=DENSE, global_batch=8)
    assert [(v.rule, v.path) for v in found] == [("stage.coverage", "lane main"), ("split.unused-dim", "lane main / stage 0 / stream")]
    assert all(v.message and v.hint for v in found)
    with pytest.raises(StrategyError, match=r"lane main: layers: 7 of 8 blocks .* \[stage.coverage\]") as error:
        require_valid(plan, model=DENSE, global_batch=8)
    assert error.value.rule == "stage.coverage"


def test_huge_trees_are_refused_without_listing_them() -> None:
    plan = _with_tree(
        parse_plan(BASE), Split(dim=Dim.REPLICATE, parts=2**30, step=0, children=(Split(dim=Dim.BATCH, parts=2**30, step=1),))
    )
    assert "split.devices-overlap" in [v.rule for v in verify(plan, model=DENSE, global_batch=8)]


@settings(max_examples=200, deadline=None)
@given(tree=trees(leaves=10))
def test_tree_questions_agree_with_the_leaves(tree: Split | None) -> None:
    if num_leaves(tree) > 5000:
        return
    devices = devices_of(tree)
    assert span(tree) == max(devices)
    assert overlaps(tree) == (len(set(devices)) != len(devices))
    assert depth(tree) >= 0


def _measure(intervals: tuple[tuple[Fraction, Fraction], ...]) -> Fraction:
    return sum((high - low for low, high in intervals), Fraction(0))


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.integers(1, 4), min_size=1, max_size=3), zigzag=st.booleans())
def test_cuts_are_disjoint_and_whole(parts: list[int], zigzag: bool) -> None:
    pieces: list[tuple[tuple[Fraction, Fraction], ...]] = [((Fraction(0), Fraction(1)),)]
    for n in parts:
        pieces = [part for piece in pieces for part in cut(piece, (Fraction(1, n),) * n, zigzag=zigzag)]
    flat = sorted(interval for piece in pieces for interval in piece)
    assert flat[0][0] == 0
    assert flat[-1][1] == 1
    assert all(a[1] == b[0] for a, b in pairwise(flat))
    assert len({_measure(piece) for piece in pieces}) == 1


@given(outer=st.integers(1, 5), inner=st.integers(1, 5))
def test_a_zigzag_of_a_zigzag_is_one_zigzag(outer: int, inner: int) -> None:
    whole = ((Fraction(0), Fraction(1)),)
    twice = [p for o in cut(whole, (Fraction(1, outer),) * outer, zigzag=True) for p in cut(o, (Fraction(1, inner),) * inner, zigzag=True)]
    n = outer * inner
    assert [tuple(sorted(p)) for p in twice] == [tuple(sorted(p)) for p in cut(whole, (Fraction(1, n),) * n, zigzag=True)]


def test_regions_of_a_ring() -> None:
    tree = parse_plan(EXPERTS.replace("all = b4 t2", "all = b2 s2z t2")).lanes[0].stages[0].placements[0].split
    found = dict(regions(tree))
    half, quarter = Fraction(1, 2), Fraction(1, 4)
    assert found[0] == found[1] == Region(batch=(Fraction(0), half), sequence=((Fraction(0), quarter), (3 * quarter, Fraction(1))))
    assert found[6].sequence == ((quarter, 3 * quarter),)
    assert found[0].inside(Region())
    assert not found[0].inside(found[2])
    assert most_parts(tree, Dim.BATCH) == 2
