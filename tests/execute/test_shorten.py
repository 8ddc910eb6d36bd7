"""A step that is too long for a minute has fewer layers and microbatches, and the same devices,
trees, stages and order."""

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.proof.fewer_layers_and_microbatches import num_operators, shorter_step
from shardwright.execute.proof.prove_plan import prove_plan
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.verify.check_structural_plan_rules import require_valid
from tests.jobs import training_job

CASES = [
    ("llama-3.1-8b", "tp4 sp pp4 dp2 mbs1 zero1", 64),
    ("llama-3.1-8b", "tp2 sp pp4 vpp2 dp2 mbs1 recompute=full:2", 64),
    ("llama-3.2-1b", "pp4 dp2 mbs1 schedule=dualpipe", 64),
]


@pytest.mark.parametrize(("name", "grid", "batch"), CASES)
def test_what_is_left_is_a_plan_of_the_same_form(name: str, grid: str, batch: int) -> None:
    model, job = load_model(name), training_job(seq_len=2048, global_batch=batch)
    plan = plan_of(parse_grid(grid), model=model, global_batch=batch)
    asked = model, job, plan
    assert shorter_step(*asked, most=num_operators(asked)) == asked
    fewest = num_operators(asked)
    for most in (num_operators(asked) // 2, num_operators(asked) // 8, 1):
        small, short, found = shorter_step(*asked, most=most)
        require_valid(found, model=small, global_batch=short.global_batch)
        count = num_operators((small, short, found))
        assert count <= fewest
        fewest = count
        assert found.devices == plan.devices
        assert found.orders == plan.orders
        for one, other in zip(plan.lanes, found.lanes, strict=True):
            assert other.samples * one.microbatches == one.samples * other.microbatches
            assert [[p.split for p in s.placements] for s in one.stages] == [
                [p.split for p in s.placements] for s in other.stages
            ]
            assert [[k.how for k in s.keeps] for s in one.stages] == [
                [k.how for k in s.keeps] for s in other.stages
            ]
    assert fewest < num_operators(asked) / 8


def test_a_shortened_plan_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.execute.proof.prove_plan.SHORT_OPERATORS", 500)
    model, job = load_model("llama-3.2-1b"), training_job(seq_len=2048, global_batch=64)
    plan = plan_of(parse_grid("tp2 sp pp2 mbs1 zero1"), model=model, global_batch=64)
    assert num_operators((model, job, plan)) > 500
    told: list[str] = []
    found = prove_plan(model, job, plan, progress=lambda phase, done, total: told.append(phase))
    assert found.equal
    assert found.devices == 4
    assert len(told) == 2
