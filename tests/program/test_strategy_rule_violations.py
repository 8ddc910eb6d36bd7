"""What a runtime cannot run is refused for one strategy as it is for a search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwright.api.searches.grid_search import plan
from shardwright.api.simulate_strategy_and_verify_stored import simulate
from shardwright.errors import RuntimeModelError, StrategyError
from shardwright.search.search_request import Request

MODEL: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "cluster": "h100-sxm:8",
    "seq_len": 2048,
    "global_batch": 16,
}
EXPERTS: dict[str, Any] = {**MODEL, "model": "qwen3-30b-a3b"}


@pytest.mark.parametrize(
    ("runtime", "strategy", "pins", "rule", "said"),
    [
        (
            "deepspeed",
            "tp2 sp dp4 zero1",
            {"sp": "1", "tp": "2"},
            "runtime.sp",
            "sequence parallelism",
        ),
        ("nanotron", "cp2 dp4 zero1", {"cp": "2"}, "runtime.cp", "context parallelism"),
        (
            "torchtitan",
            "cp2 ulysses2 dp4 zero3",
            {"cp": "2", "ulysses": "2"},
            "runtime.cp",
            "Ulysses",
        ),
        (
            "torchtitan",
            "dp8 zero3 offload=100",
            {"offload": "100"},
            "runtime.offload",
            "no optimizer on the host",
        ),
        (
            "nemo-24.07",
            "dp8 zero1 offload=50",
            {"offload": "50"},
            "runtime.offload",
            "no optimizer on the host",
        ),
        (
            "megatron-2022",
            "dp8 zero1 shard=4",
            {"shard": "4"},
            "runtime.shard",
            "sharding groups smaller than dp",
        ),
        ("llm-foundry", "ep2 dp8 zero3", {"ep": "2"}, "runtime.experts", "expert parallelism"),
    ],
)
def test_one_strategy_and_a_search_are_refused_alike(
    runtime: str, strategy: str, pins: dict[str, str], rule: str, said: str
) -> None:
    request = Request(**(EXPERTS if "ep" in pins else MODEL), runtime=runtime)
    with pytest.raises(StrategyError, match=said) as caught:
        simulate(request, strategy=f"{strategy} mbs1 recompute=none")
    assert (caught.value.rule, bool(caught.value.hint)) == (rule, True)
    with pytest.raises(RuntimeModelError, match=said):
        plan(replace(request, pins=tuple((axis, (value,)) for axis, value in pins.items())))


@pytest.mark.parametrize(
    "strategy", ["tp2 sp dp4 zero1", "cp2 dp4 zero1", "dp8 zero1 offload=100", "dp8 zero1 shard=4"]
)
def test_what_a_runtime_has_is_simulated(strategy: str) -> None:
    assert simulate(Request(**MODEL), strategy=f"{strategy} mbs1 recompute=none").step_time_s > 0
