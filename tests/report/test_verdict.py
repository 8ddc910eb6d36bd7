"""What a screen says of memory: fits, nearly, or by how much not and what would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api.request_to_problem import problem_of
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.search.answer_summary_text import kept_free, verdict
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.units import GIB
from tests.cli.answers import PREDICTION

ASKED = Request(model="llama-3.1-70b", cluster="h100-sxm:64", seq_len=8192, global_batch=64)


def test_a_strategy_that_does_not_fit_says_where_by_how_much_and_what_would() -> None:
    found = simulation(ASKED, strategy="tp8 sp dp8 zero1")
    assert not found.prediction.fits
    words = verdict(found.prediction, fitting=found.fitting)
    over = (found.prediction.reserved_bytes - found.prediction.capacity_bytes) / GIB
    assert words.startswith(f"DOES NOT FIT: stage 0 by {over:.4g} GiB; fits with ")
    assert len(found.fitting) == 3
    seconds = []
    for change in found.fitting:
        done = simulation(ASKED, strategy=changed(change))
        assert done.prediction.fits, change
        assert done.fitting == ()
        seconds.append(done.prediction.step_time_s)
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(("over", "blocks"), [(-1, True), (0, True), (1, False)])
def test_where_the_blocks_alone_are_too_large_it_is_said(over: int, blocks: bool) -> None:
    """Around the size of a device under which the tensors of its fullest stage just have room."""
    found = simulation(ASKED, strategy="tp8 sp dp8 zero1").prediction
    fragments = {stage.rank: dict(stage.items)["fragmentation"] for stage in found.stages}
    capacity = max(stage.reserved - fragments[stage.rank] for stage in found.stages) - over
    assert min(fragments.values()) > 1
    device = replace(
        found,
        capacity_bytes=capacity,
        stages=tuple(replace(stage, capacity=capacity) for stage in found.stages),
    )
    words = verdict(device)
    assert words.startswith("DOES NOT FIT")
    assert ("the tensors fit" in words) == blocks


def changed(change: str) -> str:
    """The strategy above with one axis changed, and data parallelism for the rest of 64 devices."""
    axis = change.rstrip("0123456789")
    size = int(change.removeprefix(axis)) if axis in {"tp", "cp", "pp"} else 1
    kept = "" if axis == "tp" else "tp8 "
    zero = "" if axis == "zero" else " zero1"
    return f"{kept}{change} sp dp{64 // size // (1 if axis == 'tp' else 8)}{zero}"


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.5, "fits: the fullest device holds 50.0 % of"), (0.97, "above 95 % it may run out")],
)
def test_a_nearly_full_device_is_warned_of(share: float, words: str) -> None:
    prediction = replace(PREDICTION, reserved_bytes=int(share * PREDICTION.capacity_bytes))
    assert words in verdict(prediction)
    assert ("may run out" in verdict(prediction)) == (share > 0.95)


def test_what_is_kept_free_is_said() -> None:
    half = replace(PREDICTION, reserved_bytes=PREDICTION.capacity_bytes // 2)
    assert kept_free(ASKED, searched=False) == ""
    assert "plans leave 5 % of it free (--headroom)" in verdict(
        half, kept=kept_free(ASKED, searched=True)
    )
    assert "5.0 % more is kept free" in verdict(
        half, kept=kept_free(replace(ASKED, reserve_fraction=0.05), searched=False)
    )
    assert "4 GiB more is kept free" in verdict(
        half, kept=kept_free(replace(ASKED, reserve_bytes=4 * GIB), searched=False)
    )
    assert "free" not in verdict(half, kept=kept_free(replace(ASKED, headroom=0.0), searched=True))


def test_a_prediction_fits_exactly_where_the_simulation_does() -> None:
    problem = problem_of(ASKED)
    for text in (
        "tp8 sp dp8 zero1",
        "tp8 sp dp8 zero1 recompute=full",
        "tp8 sp pp4 dp2 zero1 recompute=full",
    ):
        assert (
            simulation(ASKED, strategy=text).prediction.fits
            == simulate_grid(problem, parse_grid(text)).fits
        )
