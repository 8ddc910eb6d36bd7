"""Random slider positions, planned again with their own commands, have the same answer."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shardwright.api.report.predicted_step_cost_memory_proof_content import answer_card
from shardwright.api.report.what_if_content import position_command
from shardwright.api.what_if.axes_of_request import AXES, usual_values, why_without
from shardwright.api.what_if.search_best_plans_along_axis import what_if
from shardwright.cli.main import run
from shardwright.errors import InfeasibleError
from shardwright.files.plan_and_simulation_file_contents import StoredPlan
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.search.search_request import Request
from tests.tiers import seeds

_MODELS = ("llama-3.2-1b", "llama-3.1-8b", "gpt2-xl", "qwen3-30b-a3b")
_CLUSTERS = ("h100-sxm:8", "h100-sxm:16", "a100-sxm-80gb:32/1.5usd", "h100-sxm:64,memory=0.8x")
_PRICES: tuple[dict[str, float], ...] = ({}, {"": 2.25}, {"h100-sxm": 3.1, "a100-sxm-80gb": 1.2})


def approx(value: float | None) -> Any:
    """The value as a file holds it, in nine digits."""
    return pytest.approx(value, rel=1e-8)


def positions(random: Random) -> Iterator[tuple[Request, str, float, dict[str, float]]]:
    """Random requests with a random position of a random axis."""
    while True:
        request = Request(
            model=random.choice(_MODELS),
            cluster=random.choice(_CLUSTERS),
            seq_len=1024 << random.randrange(3),
            global_batch=8 << random.randrange(5),
            headroom=random.choice((0.05, 0.1)),
            dropout=random.random() < 0.2,
        )
        axis, prices = random.choice(list(AXES)), random.choice(_PRICES)
        if not why_without(request, AXES[axis], prices):
            yield request, axis, random.choice(usual_values(request, AXES[axis], prices)), prices


@pytest.mark.parametrize("key", seeds(3, 50))
def test_a_position_is_planned_again(key: int, tmp_path: Path) -> None:
    request, axis, value, prices = next(positions(Random(key)))
    (position,) = what_if(request, axis, (value,), prices=prices).positions
    words = shlex.split(shlex.join(position_command(position)))
    file = tmp_path / "again.json"
    code = run([*words[1:], "--quiet", "-o", str(file)])
    if position.found is None:
        assert code == InfeasibleError.exit_code
        assert position.why
        return
    assert code == 0
    saved, simulation = read_saved(file), position.found.simulation
    assert saved.grid == simulation.grid
    assert isinstance(saved, StoredPlan)
    # `plan` also ranks the next best plans: it counts more simulations, and proves the same.
    assert saved.certificate.optimal == position.found.certificate.optimal
    assert saved.certificate.best_s == approx(position.found.certificate.best_s)
    again, predicted = saved.prediction, simulation.prediction
    assert again.fits == predicted.fits
    assert again.reserved_bytes == predicted.reserved_bytes
    assert again.step_time_s == approx(predicted.step_time_s)
    assert again.tokens_per_s == approx(predicted.tokens_per_s)
    cost = answer_card(saved, prices=dict(position.prices)).usd_per_million_tokens
    assert cost == approx(position.usd_per_million_tokens)
