"""What runs is what was lowered, as integers: elements of every collective, messages, sums of gradients, FLOPs of products, parameters."""

from dataclasses import replace
from functools import lru_cache

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute import block_run
from shardwright.execute.parameters import seeded
from shardwright.execute.prove import made_batch
from shardwright.execute.shrink import shrink_for
from shardwright.execute.step import StepResult, run_step
from shardwright.execute.trace import Trace
from shardwright.job.training import TrainingJob
from shardwright.model.graph import Model
from shardwright.strategy.plan import Plan
from tests.execute.counts import (
    CountedProducts,
    lowered_flops,
    lowered_messages,
    lowered_moves,
    lowered_parameters,
    lowered_sums,
    traced_messages,
    traced_moves,
    traced_sums,
)
from tests.strategy.zoo_plans import zoo_plan

PLANS = ("14-survey3", "42-zb-h1", "52-hidden", "53-tp2-dp2", "68-vocabulary-in-stage")
"""Dense, without slices, cut into equal parts of positions, with no layer computed twice."""


@lru_cache(maxsize=1)
def problem(name: str) -> tuple[Model, TrainingJob, Plan]:
    found = zoo_plan(name)
    job = replace(found.job, sequences=tuple(replace(s, tokens=16) for s in found.job.sequences))
    return shrink_for(found.plan, model=found.model), job, found.plan


@lru_cache(maxsize=1)
def ran(name: str) -> tuple[StepResult, Trace, CountedProducts]:
    model, job, plan = problem(name)
    trace, products = Trace(), CountedProducts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_run, "numerics_of", products)
        result = run_step(model, job, plan, batch=made_batch(model, job, seed=0), source=seeded(model, seed=0), trace=trace)
    return result, trace, products


@pytest.mark.parametrize("name", PLANS)
class TestCounts:
    def test_collectives_inside_layers(self, name: str) -> None:
        assert traced_moves(ran(name)[1].records) == lowered_moves(*problem(name))

    def test_messages_between_stages(self, name: str) -> None:
        assert traced_messages(ran(name)[1].records) == lowered_messages(*problem(name))

    def test_sums_of_gradients(self, name: str) -> None:
        assert traced_sums(ran(name)[1].records) == lowered_sums(*problem(name))

    def test_flops_of_products(self, name: str) -> None:
        assert ran(name)[2].flops == lowered_flops(*problem(name))

    def test_parameters(self, name: str) -> None:
        held = {d: sum(h.value.numel() for boxes in s.held.values() for h in boxes.values()) for d, s in ran(name)[0].stores.items()}
        assert held == lowered_parameters(*problem(name))
