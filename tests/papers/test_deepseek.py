"""DeepSeek-V3 as its report says that it was trained (arXiv 2412.19437v2, sections 3.2, 3.3 and
4.2), with nothing fitted to it."""

from __future__ import annotations

import pytest

from shardwright.simulator.predict_plan import predict
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.units import GIB
from tests.search.problems import real_problem

OWN = "pp16 ep64 dp128 mbs1 zero1 recompute=none schedule=dualpipe"
PUBLISHED = 14.8e12 / 2.664e6 / 3600
"""Tokens a second and H800: 14.8T tokens in 2.664M hours (the README of deepseek-ai/DeepSeek-V3).
"""


def found(words: str = "", grid: str = OWN) -> Prediction:
    problem = real_problem(
        "deepseek-v3",
        "h800-sxm:2048",
        seq_len=4096,
        global_batch=15360,
        runtime=f"deepseek-v3 {words}",
        precision="fp8",
    )
    return predict(problem, parse_grid(grid), with_sources=False)


def rate(prediction: Prediction) -> float:
    return 15360 * 4096 / prediction.step_time_s / 2048


def test_its_own_plan_is_as_fast_as_published() -> None:
    assert rate(found()) == pytest.approx(PUBLISHED, rel=0.10)


def test_its_own_plan_fits_its_devices_and_needs_what_saves_memory() -> None:
    """ "Extremely memory saving": none of these alone is what makes it fit, all together are."""
    assert found().fits
    everything = (
        "recompute_norms=off recompute_mla=off recompute_moe_act=off gate_dtype=activation"
        " moments=fp32"
    )
    assert not found(everything).fits


def test_each_of_its_means_does_what_it_is_for() -> None:
    own = found()
    assert rate(found("dispatch_dtype=bf16")) < rate(own)
    assert rate(found("dispatch_sms=6")) > rate(own) > rate(found("dispatch_sms=24"))
    assert rate(found(grid=OWN.replace("dualpipe", "1f1b"))) < 0.7 * rate(own)


def test_moments_in_16_bits_take_8_bytes_a_parameter_with_their_master_copy() -> None:
    def states(words: str) -> int:
        return max(dict(stage.items)["optimizer"] for stage in found(words).stages)

    assert states("moments=fp32") == pytest.approx(states("") * 12 / 8, rel=1e-6)


def test_gates_in_8_bits_save_a_byte_of_what_they_read() -> None:
    """A pair of stages has 8 layers of experts; of each 17 microbatches, half of them of either
    lane, keep routed and shared halves."""

    def kept(words: str) -> int:
        return max(dict(stage.items)["activations"] for stage in found(words).stages)

    a_layer = 4096 * (8 + 1) * 2 * 2048
    assert kept("gate_dtype=activation") - kept("") == pytest.approx(17 * 4 * a_layer, rel=1e-3)
    assert 17 * 4 * a_layer / GIB == pytest.approx(9.6, abs=0.1)
