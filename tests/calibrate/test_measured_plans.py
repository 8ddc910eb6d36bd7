"""Twelve plans on two ranks of a processor, measured once by `python -m benchmarks.cpu_predictions
FOLDER`, and predicted anew."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from shardwright.api.simulate_strategy_and_verify_stored import simulate
from shardwright.search.search_request import Request
from shardwright.simulator.prediction import Prediction

FOLDER = Path(__file__).with_name("measured")
MEASURED: dict[str, Any] = json.loads((FOLDER / "twelve_plans.json").read_text())
PLANS: dict[str, dict[str, float]] = MEASURED["plans"]
WITHIN, APART = 0.25, 1.2


@cache
def predicted(strategy: str) -> Prediction:
    request = Request(
        model=str(FOLDER / "model.json"),
        cluster="cpu:2",
        seq_len=256,
        global_batch=8,
        runtime="shardwright",
        precision="fp32",
        profile=str(FOLDER / "two_ranks.json"),
    )
    return simulate(request, strategy=strategy)


@pytest.mark.parametrize("strategy", PLANS)
def test_memory_of_measured_plans(strategy: str) -> None:
    """Of the device whose memory was missed by most."""
    measured = PLANS[strategy]["bytes"]
    assert any(abs(stage.allocated / measured - 1) < WITHIN for stage in predicted(strategy).stages)


@pytest.mark.parametrize("strategy", PLANS)
def test_steps_of_measured_plans(strategy: str) -> None:
    assert abs(predicted(strategy).step_time_s / PLANS[strategy]["seconds"] - 1) < WITHIN


def test_plans_that_differ_are_ranked_as_measured() -> None:
    apart = 0
    for one, other in combinations(PLANS, 2):
        ratio = PLANS[one]["seconds"] / PLANS[other]["seconds"]
        if max(ratio, 1 / ratio) > APART:
            apart += 1
            assert (predicted(one).step_time_s < predicted(other).step_time_s) == (ratio < 1), (
                one,
                other,
            )
    assert apart > 5
