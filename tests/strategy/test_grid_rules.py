"""Rules are predicates on whole numbers and on columns of them alike, and the search judges its
members by the same list."""

import random
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from shardwright.errors import StrategyError
from shardwright.search.grid.members.enumerate_members import enumerate_members
from shardwright.strategy.grid import grid_rule_violations
from shardwright.strategy.grid.chunk_placement_by_schedule import GRID_SCHEDULES
from shardwright.strategy.grid.grid_rules import GENERAL_RULES, RULES, GridFacts
from shardwright.strategy.grid.parallelism_grid import AXES, FIELD_RULES, Grid, Recompute
from shardwright.strategy.rule_violations import GridRule
from tests.search.problems import small_case

EVERY = tuple(dict.fromkeys((*RULES, *GENERAL_RULES)))
FIELDS = (
    *(name for name in Grid.__slots__ if name not in ("layers", "order")),
    *("largest", "folds", "searched", "interleaved", "is_1f1b", "unlike", "known", "wave", "lanes"),
)


def any_facts(generator: random.Random) -> GridFacts:
    def some(*values: int) -> int:
        return generator.choice(values)

    experts = some(0, 8, 12)
    return GridFacts(
        devices=some(8, 12, 16, 64),
        global_batch=some(12, 16, 64, 96),
        seq_len=some(1, 24, 64, 96),
        layers=some(1, 5, 8, 12),
        heads=some(0, 6, 8, 16),
        kv_heads=some(0, 1, 2, 3, 8),
        ffn=some(0, 12, 64),
        experts=experts,
        expert_ffn=some(6, 8) if experts else 0,
        scan_heads=some(0, 4, 6),
        causal=generator.random() < 0.5,
        teacher=some(0, 0, 1, 8),
        fills_pipeline=generator.random() < 0.5,
        ties_experts=generator.random() < 0.3,
        equal_stages=generator.random() < 0.3,
        equal_between=generator.random() < 0.3,
    )


def any_grid(generator: random.Random) -> Grid:
    """Legal or not, along every axis."""

    def some(*values: int) -> int:
        return generator.choice(values)

    cp = some(1, 1, 2, 3, 4, 8)
    recompute = generator.choice(list(Recompute))
    pp, vpp = some(1, 2, 3, 4), some(1, 1, 2, 3)
    listed = generator.random() < 0.2
    return Grid(
        tp=some(1, 1, 2, 3, 4, 8),
        sp=generator.random() < 0.5,
        cp=cp,
        ulysses=generator.choice([u for u in (1, 2, 3, 4, 8) if cp % u == 0]),
        gather=generator.random() < 0.5,
        ep=some(1, 1, 2, 3, 4, 8),
        etp=some(1, 1, 2, 3),
        dp=some(1, 2, 3, 4, 8),
        pp=pp,
        vpp=vpp,
        microbatch=some(1, 2, 3),
        zero=some(0, 1, 2, 3),
        shard=some(0, 1, 2, 3, 4, 5),
        recompute=recompute,
        recompute_layers=some(0, 1, 2, 4, 9) if recompute is Recompute.FULL else 0,
        host=some(0, 0, 1, 9) if recompute is Recompute.NONE else 0,
        schedule=generator.choice(
            [*GRID_SCHEDULES, "interleaved-1f1b", "interleaved-1f1b", "2f2b"]
        ),
        first=0 if listed else some(0, 0, 0, 2),
        last=0 if listed else some(0, 0, 0, 2),
        layers=tuple(some(1, 2) for _ in range(pp * vpp)) if listed else (),
        slices=some(1, 1, 1, 2, 70),
        order=tuple(generator.sample(AXES, len(AXES))),
    )


@pytest.mark.parametrize("seed", range(5))
def test_numbers_and_columns_agree_on_every_rule(seed: int) -> None:
    generator = random.Random(seed)
    facts = any_facts(generator)
    rows = [grid_rule_violations._values_of_grid(any_grid(generator), facts) for _ in range(400)]
    columns = SimpleNamespace(
        **{name: np.array([getattr(row, name) for row in rows]) for name in FIELDS}
    )
    for rule in EVERY:
        alone = [rule.holds(row, facts) for row in rows]
        assert {type(held) for held in alone} == {bool}, rule.rule
        assert np.broadcast_to(rule.holds(columns, facts), len(rows)).tolist() == alone, rule.rule


def test_every_rule_is_kept_by_some_random_grids_and_broken_by_others() -> None:
    generator = random.Random(7)
    fates: dict[GridRule, set[bool]] = {rule: set() for rule in EVERY}
    for _ in range(3000):
        facts = any_facts(generator)
        row = grid_rule_violations._values_of_grid(any_grid(generator), facts)
        for rule in EVERY:
            held = rule.holds(row, facts)
            fates[rule].add(held)
            assert held or len(rule.message(row, facts).splitlines()) == 1
    assert {rule for rule, fate in fates.items() if fate != {True, False}} == set(FIELD_RULES)


def _without(rules: tuple[GridRule, ...], left_out: GridRule) -> tuple[GridRule, ...]:
    return tuple(rule for rule in rules if rule is not left_out)


# A space has no slices, no layers in host memory and no schedule but the searched ones; its dp
# follows from the devices; its sharding groups are runs of holders, which divide them; an expert
# mesh of another size than the stage does not fold over it.
BY_THE_SPACE = (
    {"searched"},
    {"host"},
    {"slices"},
    {"slices", "seq_len"},
    {"devices"},
    {"shard"},
    {"tp", "cp", "dp", "ep", "etp"},
)
IN_THE_SPACE = [
    rule
    for rule in RULES
    if not any(names <= set(rule.holds.__code__.co_names) for names in BY_THE_SPACE)
]


def _legal(seed: int) -> int:
    """Legal members of a small space with degrees that it would not offer by itself; -1: one of
    them is no grid."""
    case, generator = small_case(seed, most=300), random.Random(seed)
    degrees = {
        "tp": (1, 2, 3, 4, 6, 8),
        "cp": (1, 2, 4),
        "ulysses": (1, 2),
        "sp": (0, 1),
        "ep": (1, 2, 4),
        "etp": (1, 2),
        "pp": (1, 2, 4),
        "vpp": (1, 2),
    }
    values = {**dict(case.space.values), **degrees, "schedule": ("1f1b", "interleaved-1f1b")}
    space = replace(case.space, values=tuple((axis, values[axis]) for axis, _ in case.space.values))
    runtime = replace(
        case.problem.runtime,
        context_ulysses=True,
        sequence_parallel=True,
        expert_parallel=True,
        schedules=values["schedule"],
    )
    odd = {
        "seq_len": 12,
        "global_batch": 12,
        "ffn": 3,
        "scan_heads": 3,
        "experts": 6,
        "expert_ffn": 3,
        "teacher": 1,
    }
    odd |= dict.fromkeys(("ties_experts", "equal_stages", "equal_between"), True)
    facts = replace(
        case.facts,
        **{
            name: generator.choice((getattr(case.facts, name), value))
            for name, value in odd.items()
        },
    )
    try:
        members = enumerate_members(replace(case.problem, runtime=runtime), space, facts)
    except StrategyError:
        return -1
    return members.enumerated - members.illegal


@cache
def _counted() -> dict[int, int]:
    """`_legal` of sixty spaces under all rules."""
    return {seed: _legal(seed) for seed in range(1000, 1060)}


@pytest.mark.parametrize(
    "rule", IN_THE_SPACE, ids=lambda rule: f"{rule.rule}-{'-'.join(rule.holds.__code__.co_names)}"
)
def test_a_search_without_a_rule_counts_other_members(
    rule: GridRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        counted = _counted()
        monkeypatch.setattr(grid_rule_violations, "RULES", _without(RULES, rule))
        grid_rule_violations._readable.cache_clear()
        assert any(_legal(seed) != count for seed, count in counted.items())
    finally:
        grid_rule_violations._readable.cache_clear()
