"""The parts of a step are whole picoseconds where they are times of its clock: nothing that is no
time at all is told."""

from __future__ import annotations

import pytest

from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.search.search_request import Request

GRIDS = (
    ("llama-3.1-8b", "h100-sxm:8", "tp2 sp dp4 zero1"),
    ("llama-3.1-8b", "h100-sxm:8", "dp8 zero3"),
    ("llama-3.1-8b", "h100-sxm:8", "tp4 cp2 zero2"),
    ("llama-3.1-8b", "h100-sxm:8", "pp4 vpp2 dp2 zero1 mbs2"),
    ("llama-3.1-8b", "h100-sxm:8", "pp8 schedule=zb-v"),
    ("deepseek-v2-lite", "h100-sxm:16", "ep8 dp16 zero1"),
)


@pytest.mark.parametrize(("model", "cluster", "text"), GRIDS)
def test_differences_of_times_are_taken_in_picoseconds(model: str, cluster: str, text: str) -> None:
    found = simulation(
        Request(model=model, cluster=cluster, seq_len=8192, global_batch=256), strategy=text
    ).prediction
    parts = dict(found.breakdown_s)
    for name in ("bubble", "slowdown", "optimizer"):
        seconds = parts.get(name, 0.0)
        assert seconds == round(seconds * 1e12) / 1e12
    assert all(seconds >= 0.5e-12 or seconds == 0.0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(found.step_time_s, rel=1e-12)


def test_a_step_without_a_pipeline_has_no_bubble() -> None:
    """The difference of its times as floats is 4e-13 s."""
    found = simulation(
        Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=8192, global_batch=256),
        strategy="tp2 sp dp4 zero1",
    )
    assert dict(found.prediction.breakdown_s)["bubble"] == 0.0
