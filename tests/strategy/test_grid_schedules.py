"""Grids name every schedule: placed where the schedule wants its chunks, refused where it refuses,
recognised again."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from shardwright.errors import StrategyError
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.schedules.check_grid_schedule_exists import order_violations
from shardwright.schedules.chunk_placement import chunk_ranks
from shardwright.schedules.schedule_registry import SCHEDULES as ALL
from shardwright.schedules.schedule_registry import schedule
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.chunk_placement_by_schedule import GRID_SCHEDULES, WAVE
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_rules import SCHEDULES
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.grid.plan_to_grid import grid_of
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.registries import place, require_members, require_same_members
from tests.strategy.zoo_models import dense

MODEL = dense(layers=16)
NAMES = tuple(ALL)
TAKES_ALL_SIZES = ("breadth-first", "looped-bfs")
TABLE = place("src/shardwright/strategy/grid/chunk_placement_by_schedule.py", "GRID_SCHEDULES")


def grid_with(name: str, **fields: int) -> Grid:
    """A grid of four ranks that the schedule has a table for."""
    require_members(GRID_SCHEDULES, [name], TABLE)
    vpp = 2 if name in ("interleaved-1f1b", "looped-bfs") else GRID_SCHEDULES[name].chunks
    return Grid(**{"tp": 2, "sp": True, "pp": 4, "vpp": vpp, "schedule": name, **fields})  # type: ignore[arg-type]


def broken(grid: Grid, *, batch: int) -> set[str]:
    facts = grid_facts(MODEL, devices=grid.devices, global_batch=batch, seq_len=4096)
    mine = {v.rule for v in violations(grid, facts=facts, general=True)}
    if grid.schedule not in SCHEDULES:
        mine |= {
            v.rule
            for v in order_violations(grid, microbatches=batch // (grid.dp * grid.microbatch))
        }
    return mine


def test_what_a_grid_knows_of_schedules_is_what_they_say() -> None:
    require_same_members(GRID_SCHEDULES, ALL, TABLE)
    for name, known in GRID_SCHEDULES.items():
        placement = schedule(name).placement
        assert (known.placement, known.lanes) == (placement.value, placement.lanes)
        for pp, chunks in product((1, 2, 4, 5), (1, 2, 3, 4)):
            wanted = chunk_ranks(placement, num_ranks=pp, chunks_per_rank=chunks).tolist()
            assert [
                [known.rank(c, pp=pp, lane=lane) for c in range(pp * chunks)]
                for lane in range(known.lanes)
            ] == wanted


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_is_a_legal_plan(name: str) -> None:
    grid = grid_with(name)
    assert broken(grid, batch=32) == set()
    plan = plan_of(grid, model=MODEL, global_batch=32)
    assert verify(plan, model=MODEL, global_batch=32) == ()
    rows = action_rows(plan)
    assert len(rows.devices) == 4
    assert sum(lane.samples for lane in plan.lanes) == 32


@pytest.mark.parametrize("name", NAMES)
def test_grids_of_every_schedule_come_back(name: str) -> None:
    generator = random.Random(name)
    for _ in range(6):
        grid = replace(
            grid_with(name),
            dp=generator.choice((1, 2)),
            zero=generator.choice((0, 1, 3)),
            microbatch=generator.choice((1, 2)),
            slices=generator.choice((1, 4)) if name in ("terapipe", "seq-1f1b") else 1,
            order=generator.choice(
                (("tp", "cp", "ep", "dp", "pp"), ("tp", "pp", "cp", "ep", "dp"))
            ),
        )
        facts = grid_facts(MODEL, devices=grid.devices, global_batch=64, seq_len=4096)
        plan = plan_of(grid, model=MODEL, global_batch=64)
        assert grid_of(plan, model=MODEL) == canonical(grid, facts=facts)
        assert parse_grid(print_grid(grid)) == grid
        text = print_plan(plan, model=MODEL)
        assert text.startswith("plan plan devices")
        assert "\ngrid samples 64 " in text
        assert parse_plan(text, model=MODEL) == plan


def test_chunks_of_a_wave_are_listed_and_come_back() -> None:
    grid = grid_with("zb-v", tp=1, sp=False, layers=(1, 3, 2, 2, 2, 2, 3, 1))  # type: ignore[arg-type]
    plan = plan_of(grid, model=MODEL, global_batch=16)
    assert [stage.base for stage in plan.lanes[0].stages] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert grid_of(plan, model=MODEL) == grid
    assert grid_of(
        plan_of(replace(grid, layers=(2,) * 8), model=MODEL, global_batch=16), model=MODEL
    ) == replace(grid, layers=())
    assert broken(replace(grid, layers=(), first=2), batch=16) == {"grid.layers"}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in SCHEDULES])
def test_a_grid_is_refused_exactly_where_its_schedule_is(name: str) -> None:
    require_members(GRID_SCHEDULES, [name], TABLE)
    found = schedule(name)
    refused = made = 0
    for pp, vpp, microbatches in product((1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 4, 6, 8, 12)):
        if pp * vpp > 18:
            continue
        grid = Grid(
            pp=pp, vpp=vpp, schedule=name, layers=() if 16 % (pp * vpp) == 0 else _even(pp * vpp)
        )
        rules = broken(grid, batch=microbatches)
        halves = microbatches % found.placement.lanes == 0
        try:
            if halves:
                found.table(
                    num_ranks=pp,
                    chunks_per_rank=vpp,
                    num_microbatches=microbatches // found.placement.lanes,
                )
            wanted = set() if halves else {"grid.lanes"}
        except StrategyError as error:
            wanted = {error.rule}
        if not halves:
            assert "grid.lanes" in rules
        else:
            assert rules == wanted, (grid, microbatches)
        refused, made = refused + bool(wanted), made + (not wanted)
    takes_all = name in TAKES_ALL_SIZES
    assert bool(refused) != takes_all, (
        f"{'remove' if takes_all else 'add'} {name} {'from' if takes_all else 'to'}"
        f" {place('tests/strategy/test_grid_schedules.py', 'TAKES_ALL_SIZES')}:"
        f" {refused} of {refused + made} sizes are refused"
    )
    assert made


def _even(chunks: int) -> tuple[int, ...]:
    size, left = divmod(16, chunks)
    return tuple(size + (i < left) for i in range(chunks))


def test_waves_have_two_chunks_unless_the_grid_says_more() -> None:
    for name, known in GRID_SCHEDULES.items():
        assert parse_grid(f"pp4 schedule={name}").vpp == (2 if known.placement == WAVE else 1)
    assert parse_grid("pp4 vpp4 schedule=hanayo").vpp == 4
    single = Grid(pp=4, schedule="zb-v")
    assert "vpp1" in print_grid(single)
    assert parse_grid(print_grid(single)) == single


def test_search_and_pins_keep_their_schedules() -> None:
    assert tuple(SCHEDULES) == ("gpipe", "1f1b", "interleaved-1f1b")
    facts = grid_facts(MODEL, devices=8, global_batch=32, seq_len=4096)
    assert [v.rule for v in violations(grid_with("zb-h1"), facts=facts)] == ["grid.schedule"]
    assert violations(grid_with("zb-h1"), facts=facts, general=True) == ()
    unknown = violations(Grid(pp=8, schedule="zbh1"), facts=facts, general=True)
    assert [v.rule for v in unknown] == ["grid.schedule"]
    assert "zb-h1" in unknown[0].hint


def test_lanes_and_slices_are_refused_by_rule() -> None:
    assert broken(grid_with("chimera", tp=1, sp=False), batch=3) >= {"grid.lanes"}
    assert broken(Grid(pp=2, slices=4), batch=4) == {"grid.slices"}
    assert broken(Grid(pp=2, slices=4, schedule="zb-h1"), batch=4) == {"order.parameter"}
    assert broken(Grid(pp=2, slices=5000, schedule="terapipe"), batch=4) == {"grid.slices"}
    with pytest.raises(StrategyError, match=r"\[grid.lanes\]"):
        plan_of(grid_with("gems"), model=MODEL, global_batch=3)
