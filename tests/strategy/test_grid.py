from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shardwright.errors import ShardwrightError, StrategyError
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.expert_mesh import fold
from shardwright.strategy.grid.grid_rule_violations import require_legal, violations
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.layers_per_chunk import chunk_layers, largest_chunks
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts, num_layers
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.grid.plan_to_grid import grid_of
from shardwright.strategy.plan.operator_split_tree import devices_of
from shardwright.strategy.plan.plan import ALL
from shardwright.strategy.text.grid_notation import (
    changed_grid,
    complete_order,
    parse_grid,
    print_grid,
)
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.strategies import dense_model, expert_model, grids, legal, small_grids
from tests.tiers import examples

LLAMA = (
    "tp8 sp pp16 vpp8 dp128 mbs1 zero1 recompute=none schedule=interleaved-1f1b"
    " order=tp-cp-ep-dp-pp"
)
LLAMA_FACTS = GridFacts(
    devices=16384,
    global_batch=2048,
    seq_len=8192,
    layers=126,
    vocab=128256,
    heads=128,
    kv_heads=8,
    ffn=53248,
)
DENSE, SPARSE = dense_model(), expert_model(predictors=1)
BATCH = 64


def test_llama_405b_reads_prints_and_is_legal() -> None:
    grid = parse_grid(LLAMA)
    assert (grid.tp, grid.sp, grid.pp, grid.vpp, grid.dp, grid.microbatch, grid.zero) == (
        8,
        True,
        16,
        8,
        128,
        1,
        1,
    )
    assert print_grid(grid) == LLAMA
    assert violations(grid, facts=LLAMA_FACTS) == ()
    assert parse_grid("tp8 pp16 vpp8 dp128 mbs1 zero1").schedule == "interleaved-1f1b"


@examples(40, 500)
@given(grid=grids())
def test_grid_text_round_trips(grid: Grid) -> None:
    text = print_grid(grid)
    assert parse_grid(text) == grid
    assert parse_grid(" ".join(reversed(text.split()))) == grid


@examples(40, 500)
@given(grid=grids())
def test_grid_text_without_defaults_round_trips(grid: Grid) -> None:
    text = print_grid(grid, defaults=False)
    assert parse_grid(text) == grid
    assert set(text.split()) <= set(print_grid(grid).split())


def test_grid_text_without_defaults() -> None:
    text = "tp2 sp pp2 vpp2 dp2 recompute=full"
    assert print_grid(parse_grid(text), defaults=False) == text
    assert print_grid(Grid(), defaults=False) == "dp1"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("tpp8", "did you mean tpN"),
        ("tp8 tp4", "said twice"),
        ("tp0", "at least 1"),
        ("tp99999999999", "whole number"),
        ("recompute=ful", "none, selective, full"),
        ("recompute=selective:3", "full:N"),
        ("order=tp-xx", "not an axis"),
        ("order=tp-tp", "twice"),
        ("schedul=1f1b", "did you mean schedule"),
        ("zero7", "zero0, zero1"),
        ("", "1 to 1000"),
        ("cp4 ulysses3", "does not divide"),
        ("offload=101", "100 percent"),
        ("schedule=", "not a name"),
        ("sp sp", "said twice"),
        ("tp\u0668", "unknown word"),
        ("first=-1", "whole number"),
        ("tp", "did you mean tpN"),
        ("tp=", "whole number"),
        ("sp=2", "neither on nor off"),
        ("foo=3", "unknown word"),
    ],
)
def test_grid_text_errors(text: str, part: str) -> None:
    with pytest.raises(StrategyError, match=part):
        parse_grid(text)


@examples(40, 500)
@given(text=st.text(max_size=60) | st.text(alphabet="tpcedzro0123456789=-: %fulsh", max_size=60))
@example("tp" + "9" * 5000)
@example("tp²")
def test_grid_parser_lets_only_strategy_errors_escape(text: str) -> None:
    try:
        grid = parse_grid(text)
    except StrategyError:
        return
    assert parse_grid(print_grid(grid)) == grid


@examples(40, 500)
@given(grid=grids())
def test_a_degree_is_written_one_way_or_the_other(grid: Grid) -> None:
    words = print_grid(grid).split()
    assert (
        parse_grid(" ".join(re.sub("^([a-z]+)([0-9]+)$", r"\1=\2", word) for word in words)) == grid
    )
    assert (
        parse_grid(
            " ".join(
                word.replace("=", "") if re.fullmatch("[a-z]+=[0-9]+", word) else word
                for word in words
            )
        )
        == grid
    )


@examples(40, 500)
@given(grid=grids())
def test_case_does_not_count(grid: Grid) -> None:
    text = print_grid(grid)
    assert parse_grid(text.upper()) == parse_grid(text.title()) == grid


def test_dp_is_what_the_other_degrees_leave_over() -> None:
    assert print_grid(parse_grid("tp8 pp4", devices=64)).startswith("tp8 pp4 dp2 mbs1")
    assert parse_grid("tp8 pp4", devices=32).dp == 1
    assert parse_grid("tp8 pp4 dp1", devices=64).devices == 32, "as it is written"
    assert parse_grid("tp=2 ep4", devices=16).dp == 8, "experts fold over the others"
    for text, devices in (("tp3", 64), ("tp8 pp4", 16)):
        with pytest.raises(StrategyError, match=rf"does not divide the {devices} devices") as error:
            parse_grid(text, devices=devices)
        assert error.value.rule == "grid.devices"


def test_a_printed_grid_needs_no_devices() -> None:
    assert parse_grid(print_grid(Grid(tp=8)), devices=64) == Grid(tp=8)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("zero3", {"zero": 3}),
        ("tp4", {"tp": 4, "dp": 4}),
        ("tp=4 dp16", {"tp": 4, "dp": 16}),
        ("tp1", {"tp": 1, "sp": False, "dp": 16}),
        ("sp=0", {"sp": False}),
        ("recompute=full", {"recompute": Recompute.FULL, "recompute_layers": 0}),
        ("vpp1", {"vpp": 1, "schedule": "1f1b", "first": 0}),
        ("schedule=1f1b", {"vpp": 1, "schedule": "1f1b", "first": 0}),
        ("pp1 vpp1", {"pp": 1, "vpp": 1, "dp": 8, "schedule": "1f1b", "first": 0}),
        ("last=5", {"last": 5}),
    ],
)
def test_changes_of_a_grid(change: str, expected: dict[str, object]) -> None:
    base = Grid(
        tp=8,
        sp=True,
        pp=4,
        vpp=2,
        dp=2,
        first=4,
        schedule="interleaved-1f1b",
        recompute=Recompute.FULL,
        recompute_layers=2,
    )
    assert changed_grid(base, change) == replace(base, **expected)  # type: ignore[arg-type]


@examples(40, 500)
@given(grid=grids(), other=grids())
def test_a_printed_grid_is_a_whole_strategy(grid: Grid, other: Grid) -> None:
    assert changed_grid(grid, print_grid(other)) == other


def test_full_zero_is_none_and_orders_complete() -> None:
    assert parse_grid("dp2 recompute=full:0").recompute is Recompute.NONE
    assert parse_grid("dp2 recompute=full:3").recompute_layers == 3
    assert complete_order(("tp", "pp", "dp")) == ("tp", "cp", "ep", "pp", "dp")
    assert complete_order(()) == ("tp", "cp", "ep", "dp", "pp")


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "first", "last", "expected"),
    [
        (32, 4, 1, 0, 0, (8, 8, 8, 8)),
        (126, 16, 8, 0, 0, (0, *(1,) * 126, 0)),
        (30, 4, 1, 0, 0, (7, 8, 8, 7)),
        (78, 8, 1, 9, 9, (9, *(10,) * 6, 9)),
        (22, 4, 2, 4, 0, (2, 3, 3, 3) * 2),
        (62, 2, 1, 30, 0, (30, 32)),
        (5, 1, 1, 0, 0, (5,)),
        (61, 4, 4, 0, 0, (*(4,) * 15, 1)),
        (61, 8, 4, 0, 0, (1, *(2,) * 30, 0)),
    ],
)
def test_chunk_layers(
    layers: int, pp: int, vpp: int, first: int, last: int, expected: tuple[int, ...]
) -> None:
    assert chunk_layers(layers, pp=pp, vpp=vpp, first=first, last=last) == expected


def test_listed_layers() -> None:
    assert chunk_layers(7, pp=3, layers=(2, 4, 1)) == (2, 4, 1)
    assert chunk_layers(6, pp=4, layers=(0, 2, 4, 0)) == (0, 2, 4, 0)
    for wrong in (
        {"layers": (2, 4)},
        {"layers": (2, 4, 2)},
        {"layers": (7, 0, 0)},
        {"layers": (2, 4, 1), "first": 2},
    ):
        with pytest.raises(StrategyError) as refused:
            chunk_layers(7, pp=3, **wrong)  # type: ignore[arg-type]
        assert refused.value.rule == "grid.layers"
    grid = parse_grid("pp3 layers=2,4,1 dp2")
    assert grid.layers == (2, 4, 1)
    assert parse_grid(print_grid(grid)) == grid
    for text in (
        "pp3 layers=2,4",
        "pp3 layers=2,0,4",
        "pp3 layers=2,4,x",
        "pp3 layers=2,4,1 first=2",
    ):
        with pytest.raises(StrategyError):
            parse_grid(text)


def test_listed_layers_in_a_plan() -> None:
    model = dense_model(layers=8)
    facts = grid_facts(model, devices=3, global_batch=6, seq_len=64)
    odd, ruled = Grid(pp=3, layers=(2, 4, 2)), Grid(pp=3, layers=(3, 1, 4))
    # A list that first and last say too is written with them; one that they do not say stays.
    assert canonical(odd, facts=facts) == canonical(Grid(pp=3, first=2, last=2), facts=facts)
    uneven = Grid(pp=4, layers=(1, 3, 2, 2))
    four = grid_facts(model, devices=4, global_batch=8, seq_len=64)
    assert canonical(uneven, facts=four) == uneven
    for grid, batch in ((ruled, 6), (uneven, 8)):
        plan = plan_of(grid, model=model, global_batch=batch)
        found = grid_of(plan, model=model)
        assert found is not None
        assert plan_of(found, model=model, global_batch=batch) == plan


@examples(40, 500)
@given(
    layers=st.integers(0, 200),
    pp=st.integers(1, 20),
    vpp=st.integers(1, 8),
    first=st.integers(0, 12),
    last=st.integers(0, 12),
)
def test_chunks_hold_all_layers(layers: int, pp: int, vpp: int, first: int, last: int) -> None:
    try:
        chunks = chunk_layers(layers, pp=pp, vpp=vpp, first=first, last=last)
    except StrategyError:
        return
    assert sum(chunks) == layers
    assert len(chunks) == pp * vpp
    ranks = [sum(chunks[r::pp]) for r in range(pp)]
    assert not first or ranks[0] == first
    assert not last or ranks[-1] == last


RULE_BREAKERS = [
    ("grid.devices", "tp8 sp pp16 dp256 zero1"),
    ("grid.batch", "tp8 sp pp16 vpp8 dp128 zero1 mbs3"),
    ("grid.sp", "sp pp8 dp2048"),
    ("grid.sequence", "tp2 cp8192 dp1 mbs1 sp"),
    ("grid.experts", "tp8 sp pp16 vpp8 dp128 ep4"),
    ("grid.layers", "tp8 sp pp8 dp256 first=3"),
    ("grid.interleave", "tp4 sp pp2 vpp9 dp2048"),
    ("grid.vpp", "tp8 sp pp2 vpp9 dp1024 schedule=1f1b"),
    ("grid.vpp", "tp8 sp pp2 dp1024 schedule=interleaved-1f1b"),
    ("grid.schedule", "tp8 sp pp2 dp1024 schedule=2f2b"),
    ("grid.zero", "tp8 sp pp2 dp1024 zero2 shard3"),
    ("grid.recompute", "tp8 sp pp2 dp1024 recompute=full:64"),
]


@pytest.mark.parametrize(("rule", "text"), RULE_BREAKERS)
def test_each_rule_alone(rule: str, text: str) -> None:
    broken = violations(parse_grid(text), facts=LLAMA_FACTS)
    assert [v.rule for v in broken] == [rule]
    assert broken[0].message
    assert broken[0].hint
    with pytest.raises(StrategyError, match=rule.replace(".", r"\.")):
        require_legal(parse_grid(text), facts=LLAMA_FACTS)


def test_widths_must_divide() -> None:
    facts = replace(
        LLAMA_FACTS, devices=24, heads=24, kv_heads=8, ffn=1024, global_batch=24, seq_len=48
    )
    assert [v.rule for v in violations(parse_grid("tp3 dp8"), facts=facts)] == [
        "grid.heads",
        "grid.ffn",
    ]
    assert [
        v.rule
        for v in violations(parse_grid("tp8 dp3"), facts=replace(facts, heads=28, kv_heads=4))
    ] == ["grid.heads"]
    assert violations(parse_grid("tp8 dp3"), facts=replace(facts, kv_heads=4)) == ()


def test_expert_rules() -> None:
    facts = GridFacts(
        devices=32,
        global_batch=64,
        seq_len=64,
        layers=8,
        heads=16,
        kv_heads=8,
        ffn=512,
        experts=16,
        expert_ffn=64,
    )
    fine = parse_grid("tp2 sp cp2 dp8 ep4 etp2")
    assert violations(fine, facts=facts) == ()
    no_sp = violations(replace(fine, sp=False), facts=facts)
    assert [v.rule for v in no_sp] == ["grid.experts"]
    assert "needs sp" in no_sp[0].message
    (uneven,) = violations(parse_grid("dp32 ep16 etp4"), facts=facts)
    assert "edp = tp x cp x dp / (ep x etp) = 1 x 1 x 32 / (16 x 4) = 0.5" in uneven.message
    (many,) = violations(parse_grid("dp32 ep32"), facts=facts)
    assert "16 experts" in many.message
    # tp 6 and ep 4 share no common grid
    crooked = violations(
        parse_grid("tp6 sp dp2 ep4"),
        facts=replace(facts, devices=12, heads=12, kv_heads=6, ffn=6, seq_len=96),
    )
    assert [v.rule for v in crooked] == ["grid.experts"]
    assert fold(parse_grid("tp6 sp dp2 ep4")) is None


def test_facts_of_models() -> None:
    dense = grid_facts(DENSE, devices=8, global_batch=4, seq_len=64)
    assert (dense.layers, dense.heads, dense.kv_heads, dense.ffn, dense.experts) == (
        8,
        16,
        8,
        512,
        0,
    )
    sparse = grid_facts(SPARSE, devices=8, global_batch=4, seq_len=64)
    assert (sparse.layers, sparse.ffn, sparse.experts, sparse.expert_ffn) == (
        8,
        128,
        16,
        64,
    )  # 128: gcd of 512 and the shared 128
    assert num_layers(expert_model(predictors=0)) == num_layers(SPARSE)


@examples(40, 1500)
@given(grid=small_grids(), sparse=st.booleans())
def test_canonical_is_a_fixed_point_and_keeps_the_plan(grid: Grid, sparse: bool) -> None:
    model = SPARSE if sparse else DENSE
    assume(legal(replace(grid, sp=grid.sp and grid.tp > 1), model=model, global_batch=BATCH))
    facts = grid_facts(model, devices=grid.devices, global_batch=BATCH, seq_len=64)
    once = canonical(grid, facts=facts)
    assert canonical(once, facts=facts) == once
    assert violations(once, facts=facts) == ()
    assert plan_of(once, model=model, global_batch=BATCH) == plan_of(
        grid, model=model, global_batch=BATCH
    )


@examples(80, 1000)
@given(
    one=small_grids(),
    changes=st.sampled_from(
        (
            {"shard": 0},
            {"gather": True},
            {"sp": True},
            {"order": ("pp", "dp", "ep", "cp", "tp")},
            {"schedule": "gpipe"},
            {"first": 2},
            {"zero": 1},
            {"recompute": Recompute.FULL, "recompute_layers": 4},
            {"etp": 2},
        )
    ),
    sparse=st.booleans(),
)
def test_equal_plans_have_one_representative(
    one: Grid, changes: dict[str, object], sparse: bool
) -> None:
    model = SPARSE if sparse else DENSE
    if "recompute" not in changes:
        other = replace(one, **changes)  # type: ignore[arg-type]
    else:
        one = replace(one, recompute=Recompute.FULL, recompute_layers=0)
        other = replace(one, **changes)  # type: ignore[arg-type]
    facts = grid_facts(model, devices=one.devices, global_batch=BATCH, seq_len=64)
    try:
        plans = [plan_of(g, model=model, global_batch=BATCH) for g in (one, other)]
    except StrategyError:
        assume(False)
    assert (plans[0] == plans[1]) == (canonical(one, facts=facts) == canonical(other, facts=facts))


@examples(30, 400)
@given(grid=small_grids(), sparse=st.booleans())
def test_legal_grids_make_valid_plans_that_print_as_grids(grid: Grid, sparse: bool) -> None:
    model = SPARSE if sparse else DENSE
    assume(legal(grid, model=model, global_batch=BATCH))
    plan = plan_of(grid, model=model, global_batch=BATCH)
    assert verify(plan, model=model, global_batch=BATCH) == ()
    facts = grid_facts(model, devices=grid.devices, global_batch=BATCH, seq_len=64)
    assert grid_of(plan, model=model) == canonical(grid, facts=facts)
    text = print_plan(plan, model=model)
    assert "\ngrid samples 64 " in text
    assert parse_plan(text, model=model) == plan
    assert parse_plan(print_plan(plan)) == plan
    assert len({id(stage.placements) for stage in plan.lanes[0].stages}) == 1


@examples(40, 500)
@given(grid=small_grids())
def test_trees_cover_exactly_their_stage(grid: Grid) -> None:
    assume(legal(grid, model=SPARSE, global_batch=BATCH))
    plan = plan_of(grid, model=SPARSE, global_batch=BATCH)
    taken: list[int] = []
    for stage in {s.base: s for s in plan.lanes[0].stages}.values():
        first, *others = [sorted(devices_of(p.split, stage.base)) for p in stage.placements]
        assert all(other == first for other in others)
        taken += first
    assert sorted(taken) == list(range(grid.devices))


def test_plan_5_folds_experts() -> None:
    plan = plan_of(parse_grid("tp2 sp cp2 dp8 ep4 etp2 mbs1"), model=SPARSE, global_batch=64)
    text = print_plan(plan)
    for line in (
        "all = b8 s2z t2",
        "core = b8 s2z t2 via ring",
        "stream,router = b8 s2z s2",
        "experts = b4 e4 f2",
    ):
        assert f"    {line}\n" in text


def test_ulysses_trades_positions_for_heads() -> None:
    plan = plan_of(parse_grid("cp8 ulysses4 dp2"), model=DENSE, global_batch=16)
    text = print_plan(plan)
    assert "    all = b2 s2z s4\n    core = b2 s2z h4 via ring\norder" in text


def test_memory_choices() -> None:
    hybrid = plan_of(parse_grid("dp8 zero3 shard4 offload=50"), model=DENSE, global_batch=8).shards[
        0
    ]
    assert (hybrid.optimizer, hybrid.gradient, hybrid.parameter) == (4, 4, 4)
    assert plan_of(parse_grid("dp8 zero1"), model=DENSE, global_batch=8).shards[0].optimizer == ALL
    experts = plan_of(parse_grid("dp8 zero1 shard8 ep4"), model=SPARSE, global_batch=8).shards
    assert [rule.optimizer for rule in experts] == [ALL]
    two = plan_of(parse_grid("dp8 zero1 shard4 ep4"), model=SPARSE, global_batch=8).shards
    assert [(rule.parameters, rule.optimizer) for rule in two] == [((), 4), (("experts",), 1)]
    stages = (
        plan_of(parse_grid("pp2 recompute=full:3"), model=DENSE, global_batch=8).lanes[0].stages
    )
    assert [stage.keeps[0].blocks for stage in stages] == [(0, 2), (0, 2)]


def test_side_outputs_stay_beside_the_head() -> None:
    plan = plan_of(parse_grid("pp4 schedule=1f1b"), model=SPARSE, global_batch=8)
    assert [tuple(i.name or i.count for i in s.items) for s in plan.lanes[0].stages] == [
        ("embed", 2),
        (2,),
        (2,),
        (2, "mtp", "mtp_head", "head"),
    ]
    assert verify(plan, model=SPARSE, global_batch=8) == ()


def test_order_moves_axes() -> None:
    plan = plan_of(parse_grid("tp2 dp2 pp2 order=pp-dp-tp"), model=DENSE, global_batch=8)
    assert [stage.base for stage in plan.lanes[0].stages] == [0, 1]
    split = plan.lanes[0].stages[0].placements[0].split
    assert split is not None
    assert (split.dim, split.step) == (Dim.BATCH, 2)
    assert devices_of(split) == (0, 4, 2, 6)


def test_birth_checks() -> None:
    for wrong in (
        {"tp": 0},
        {"zero": 4},
        {"offload": 101},
        {"order": ("tp", "dp")},
        {"recompute_layers": 2},
        {"schedule": "a b"},
    ):
        with pytest.raises(ShardwrightError):
            Grid(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("layers", [1, 2, 5, 7, 30, 61, 80, 126])
def test_the_largest_chunk_of_many_pipelines_is_that_of_each(layers: int) -> None:
    cuts = [(pp, vpp) for pp in range(1, layers + 4) for vpp in (1, 2, 3, 4, 8, 16)]
    expected = []
    for pp, vpp in cuts:
        try:
            expected.append(max(chunk_layers(layers, pp=pp, vpp=vpp)))
        except StrategyError:
            expected.append(-1)
    ranks, chunks = np.array(cuts, dtype=np.int64).T
    assert largest_chunks(layers, pp=ranks, vpp=chunks).tolist() == expected
