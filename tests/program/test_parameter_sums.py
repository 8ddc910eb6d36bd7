"""Who sums a parameter, as arrays and from each device's share: the same wherever arrays say
anything."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.program.stages import find_gradient_sum_groups as parameter_reductions
from shardwright.program.stages.device_shares_of_parameter_use import ParameterUse
from shardwright.program.stages.find_gradient_sum_groups import Sums
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import general_plan
from shardwright.search.mixed.plans.plan_search_state import simulate_feasible
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from tests.search.mixed.members import KINDS, batch_of, drawn_plan, mixed_problem, with_batch
from tests.tiers import in_both, many, random_of


@in_both
def test_lanes_of_unlike_parts_sum_as_each_devices_share_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Counter[str]()
    arrays = parameter_reductions._sums_by_tokens

    def both(uses: tuple[ParameterUse, ...], length: int, islands: Units | None) -> Sums | None:
        found, true = (
            arrays(uses, length, islands),
            parameter_reductions._sums_by_device(uses, length, islands),
        )
        seen["by share" if found is None else "as arrays"] += 1
        if found is not None:
            for name in ("devices", "groups", "of", "elements"):
                assert np.array_equal(getattr(found, name), getattr(true, name))
        return found

    monkeypatch.setattr(parameter_reductions, "_sums_by_tokens", both)
    parameter_reductions.sums_of.cache_clear()
    for number in range(many(2, 12)):
        problem = mixed_problem(random_of(f"sums {number}"), kind=KINDS[number % len(KINDS)])
        pipelines = PricedPipelines.of(MixedStageCosts.of(problem))
        for turn in range(3):
            plan = drawn_plan(pipelines, random.Random(turn), lanes=2 + turn % 2)
            if plan is not None:
                own = with_batch(problem, batch_of(pipelines.stage_costs, plan))
                simulate_feasible(own, general_plan(pipelines.stage_costs, plan))
    assert seen["as arrays"] > 10
