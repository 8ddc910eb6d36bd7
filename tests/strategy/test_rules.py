from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.errors import StrategyError
from shardwright.model.ir.tensor_dims import Dim
from shardwright.schedules import schedule_registry
from shardwright.strategy.grid import grid_rules
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.layers_per_chunk import chunk_layers
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.verify.check_structural_plan_rules import require_valid, verify
from tests.registries import place, require_same_members
from tests.strategy.broken_plans import BROKEN, SOUND, Broken, Sound
from tests.strategy.rule_ids import PLAN_RULES


def _broken(sound: Sound, plan: Plan) -> set[str]:
    return {
        v.rule
        for v in verify(plan, model=sound.model(), global_batch=sound.batch, seq_len=sound.seq_len)
    }


@pytest.mark.parametrize("name", SOUND)
def test_the_plans_to_break_are_valid(name: str) -> None:
    assert _broken(SOUND[name], parse_plan(SOUND[name].text)) == set()


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: f"{case.rule}-{case.plan}")
def test_a_change_breaks_its_rule_alone(case: Broken) -> None:
    sound = SOUND[case.plan]
    assert case.old in sound.text
    plan = parse_plan(sound.text.replace(case.old, case.new, 1))
    assert _broken(sound, plan) == {case.rule}
    found = verify(plan, model=sound.model(), global_batch=sound.batch, seq_len=sound.seq_len)
    assert all(v.message and (v.hint or v.path) for v in found)
    with pytest.raises(StrategyError) as refused:
        require_valid(plan, model=sound.model(), global_batch=sound.batch, seq_len=sound.seq_len)
    assert refused.value.rule == case.rule


def _deep(plan: Plan) -> Plan:
    """The plan with a tree that the notation is not willing to read."""
    tree: Split | None = None
    for _ in range(40):
        tree = Split(dim=Dim.REPLICATE, parts=1, step=1, children=(tree,))
    lane = plan.lanes[0]
    stages = tuple(
        replace(s, placements=(replace(s.placements[0], split=tree),)) for s in lane.stages
    )
    return replace(plan, lanes=(replace(lane, stages=stages),))


UNWRITTEN = {
    "split.depth": _deep,
    "lane.slices": lambda plan: replace(plan, lanes=(replace(plan.lanes[0], slices=(1, 0)),)),
    "plan.lanes": lambda plan: replace(plan, lanes=(), orders=()),
}


@pytest.mark.parametrize("rule", UNWRITTEN)
def test_rules_that_text_cannot_break(rule: str) -> None:
    sound = SOUND["base"]
    assert _broken(sound, UNWRITTEN[rule](parse_plan(sound.text))) == {rule}


@pytest.mark.parametrize("rule", PLAN_RULES)
def test_every_rule_has_a_plan_that_breaks_it(rule: str) -> None:
    assert rule in {case.rule for case in BROKEN} | set(UNWRITTEN)


def test_lengths_are_only_asked_for_when_known() -> None:
    sound = SOUND["slices"]
    plan = parse_plan(sound.text.replace("3:2", "999:1"))
    assert verify(plan, model=sound.model(), global_batch=sound.batch) == ()


FACTS = GridFacts(
    devices=16,
    global_batch=64,
    seq_len=64,
    layers=8,
    vocab=1000,
    heads=16,
    kv_heads=8,
    ffn=512,
    experts=16,
    expert_ffn=64,
    scan_heads=8,
)
GRIDS = [
    ("grid.degree", "cp4 ulysses3 dp4"),
    ("grid.devices", "tp2 dp16"),
    ("grid.batch", "tp2 dp8 mbs3"),
    ("grid.heads", "tp16"),
    ("grid.ffn", "tp8 dp2"),
    ("grid.sequence", "cp16"),
    ("grid.sp", "sp dp16"),
    ("grid.experts", "dp16 ep16 etp2"),
    ("grid.experts", "tp2 dp8 ep4"),
    ("grid.layers", "dp4 pp4 first=3 schedule=1f1b"),
    ("grid.layers", "dp4 pp4 layers=2,2,2,1 schedule=1f1b"),
    ("grid.interleave", "dp4 pp4 vpp2 mbs8 schedule=interleaved-1f1b"),
    ("grid.vpp", "dp4 pp4 schedule=interleaved-1f1b"),
    ("grid.schedule", "dp4 pp4 schedule=2f2b"),
    ("grid.lanes", "dp4 pp4 mbs16 schedule=chimera"),
    ("grid.slices", "dp4 pp4 slices=2 schedule=1f1b"),
    ("grid.recompute", "dp4 pp4 recompute=full:3 schedule=1f1b"),
    ("grid.host", "dp4 pp4 host=3 schedule=1f1b"),
    ("grid.host", "dp16 recompute=full host=3"),
    ("grid.zero", "dp16 zero1 shard3"),
    ("grid.teacher", "dp2 pp8 schedule=1f1b"),
]


def _grid_rules(text: str) -> set[str]:
    """Rules that a grid's text breaks, at birth or for the facts (fewer of its widths where the
    text is about widths)."""
    facts = (
        replace(FACTS, ffn=4, experts=0)
        if text == "tp8 dp2"
        else replace(FACTS, seq_len=16)
        if text == "cp16"
        else FACTS
    )
    facts = replace(facts, scan_heads=0, kv_heads=3) if text == "tp16" else facts
    facts = replace(facts, teacher=4) if text == "dp2 pp8 schedule=1f1b" else facts
    try:
        return {v.rule for v in violations(parse_grid(text), facts=facts, general=True)}
    except StrategyError as error:
        return {error.rule}


def test_slices_are_for_causal_models() -> None:
    grid = parse_grid("dp4 pp4 slices=2 schedule=seq-1f1b")
    assert violations(grid, facts=FACTS, general=True) == ()
    assert [v.rule for v in violations(grid, facts=replace(FACTS, causal=False), general=True)] == [
        "grid.slices"
    ]


@pytest.mark.parametrize(("rule", "text"), GRIDS)
def test_a_grid_breaks_its_rule_alone(rule: str, text: str) -> None:
    assert _grid_rules(text) == {rule}


UNSAID = [
    ("grid.degree", {"tp": 0}),
    ("grid.degree", {"zero": 4}),
    ("grid.degree", {"offload": 101}),
    ("grid.recompute", {"recompute_layers": 2}),
    ("grid.layers", {"pp": 2, "layers": (8,)}),
    ("grid.schedule", {"schedule": "a b"}),
    ("grid.order", {"order": ("tp", "dp")}),
]


@pytest.mark.parametrize(("rule", "fields"), UNSAID)
def test_a_grid_that_no_text_says_is_refused_at_birth(rule: str, fields: dict[str, object]) -> None:
    with pytest.raises(StrategyError) as refused:
        Grid(**fields)  # type: ignore[arg-type]
    assert refused.value.rule == rule


def _rules_in(*files: Path, pattern: str) -> set[str]:
    return {rule for file in files for rule in re.findall(pattern, file.read_text())}


def test_every_grid_rule_has_a_grid_that_breaks_it() -> None:
    folder = Path(grid_rules.__file__).parent
    require_same_members(
        {rule for rule, _ in GRIDS + UNSAID},
        _rules_in(*folder.glob("*.py"), pattern=r'rule="(grid\.[a-z]+)"'),
        f"{place('tests/strategy/test_rules.py', 'GRIDS')}, with a grid that breaks it",
    )


def test_chunks_refuse_what_no_grid_can_say() -> None:
    with pytest.raises(StrategyError) as refused:
        chunk_layers(8, pp=3, vpp=3, layers=(8,))
    assert refused.value.rule == "grid.layers"


SIZES = {"num_ranks": 4, "chunks_per_rank": 1, "num_microbatches": 8}
SCHEDULES = [
    ("order.schedule", "2f2b", {}),
    ("order.parameter", "1f1b", {"seed": 1}),
    ("order.count", "1f1b", {"num_microbatches": 0}),
    ("order.count", "gpipe", {"num_microbatches": 2**24}),
    ("order.chunks", "1f1b", {"chunks_per_rank": 2}),
    ("order.chunks", "zb-v", {"chunks_per_rank": 1}),
    ("order.chunks", "hanayo", {"chunks_per_rank": 3}),
    ("order.ranks", "chimera", {"num_ranks": 3}),
    ("order.ranks", "dualpipe", {"num_ranks": 3}),
    ("order.microbatches", "chimera", {"num_microbatches": 3}),
    ("order.microbatches", "dualpipe", {"num_microbatches": 3}),
    ("order.microbatches", "dualpipe-v", {"chunks_per_rank": 2, "num_microbatches": 7}),
    ("order.microbatches", "interleaved-1f1b", {"chunks_per_rank": 2, "num_microbatches": 7}),
    ("order.group", "interleaved-1f1b", {"chunks_per_rank": 2, "group": 2}),
]


@pytest.mark.parametrize(("rule", "name", "change"), SCHEDULES)
def test_a_schedule_says_which_rule_refuses(rule: str, name: str, change: dict[str, int]) -> None:
    with pytest.raises(StrategyError) as refused:
        schedule_registry.schedule(name).table(**{**SIZES, **change})
    assert refused.value.rule == rule
    assert len(refused.value.message.splitlines()) == 1


def test_every_rule_of_a_schedule_has_a_size_that_breaks_it() -> None:
    files = list(Path(schedule_registry.__file__).parent.glob("*.py"))
    refused = {f"order.{rule}" for rule in _rules_in(*files, pattern=r'rule="([a-z]+)"')}
    raised = _rules_in(*files, pattern=r'rule="(order\.[a-z]+)"')
    # rules of tables of actions as text, and of tables that no schedule makes, are tested beside
    # these
    require_same_members(
        {rule for rule, *_ in SCHEDULES},
        (refused | raised) - {"order.csv", "order.deadlock"},
        f"{place('tests/strategy/test_rules.py', 'SCHEDULES')}, with a size that breaks it",
    )
