"""What a request may ask: precisions that devices have, runtimes that run on them, steps that a
clock can count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shardwright.api.request_to_problem import facts_of, problem_of, space_of, with_defaults
from shardwright.api.searches.exact_search_on_few_devices import plan_exact
from shardwright.api.searches.grid_search import plan
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.api.searches.mixed_search import plan_mixed
from shardwright.api.simulate_strategy_and_verify_stored import simulate
from shardwright.dtype import Dtype
from shardwright.errors import ClusterError, InfeasibleError, RuntimeModelError, UsageError
from shardwright.hardware.catalog.accelerators_by_name import accelerator, accelerator_names
from shardwright.hardware.scale_network_limit_devices_reserve_memory import scale_network
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.runtime_registry import default_runtime, load_runtime, runtime_names
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.text.grid_notation import parse_grid

ASKED = Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=8192, global_batch=64)


@pytest.mark.parametrize(
    ("cluster", "precision"),
    [("a100-sxm:8", "fp8"), ("v100:8", "bf16"), ("t4:8", "bf16"), ("h100-sxm:8", "fp4")],
)
def test_a_precision_without_units_is_refused(cluster: str, precision: str) -> None:
    with pytest.raises(ClusterError, match=f"has no units for {precision}") as caught:
        problem_of(replace(ASKED, cluster=cluster, precision=precision))
    assert precision not in caught.value.hint
    assert "16" in caught.value.hint


@pytest.mark.parametrize(
    ("cluster", "precision"), [("a100-sxm:8", "bf16"), ("v100:8", "fp16"), ("t4:8", "fp16")]
)
def test_the_default_precision_is_one_that_devices_have(cluster: str, precision: str) -> None:
    asked = with_defaults(replace(ASKED, cluster=cluster))
    assert asked.precision == precision
    assert problem_of(asked).job.compute == precision


def test_every_accelerator_has_a_default_runtime_that_runs_on_it() -> None:
    for device in map(accelerator, accelerator_names()):
        assert device.vendor in load_runtime(default_runtime(device.vendor)).vendors, device.name
    vendors = {device.vendor for device in map(accelerator, accelerator_names())}
    for name in runtime_names():
        assert set(load_runtime(name).vendors) <= vendors, name


def test_a_tpu_is_not_planned_with_megatron() -> None:
    asked = replace(ASKED, cluster="tpu-v5p:64")
    assert with_defaults(asked).runtime == "maxtext"
    with pytest.raises(RuntimeModelError, match="does not run on tpu-v5p") as caught:
        problem_of(replace(asked, runtime="megatron"))
    assert "maxtext" in caught.value.hint


@pytest.mark.parametrize("change", [{"global_batch": 4_194_304}, {"seq_len": 4_294_967_296}])
def test_steps_beyond_the_clock_are_refused(change: dict[str, int]) -> None:
    asked = replace(ASKED, model="llama-3.1-405b", **change)
    for refused in (lambda: simulate(asked, strategy="tp8 sp"), lambda: plan(asked)):
        with pytest.raises(UsageError, match="hours at peak") as caught:
            refused()
        assert ("tokens meant" in caught.value.hint) == ("global_batch" in change)


def test_a_slow_network_cannot_wind_the_clock_round() -> None:
    problem = problem_of(replace(ASKED, cluster="h100-sxm:16"))
    crawling = replace(problem, cluster=scale_network(problem.cluster, factor=1e-12))
    with pytest.raises(InfeasibleError, match="longer than the simulated clock"):
        simulate_grid(crawling, parse_grid("tp8 sp dp2 mbs1 zero1"))


def test_a_request_says_dropout_and_the_wire() -> None:
    """AMP's job on its mixed cluster: masks and fp32 gradients."""
    job = problem_of(replace(ASKED, dropout=True, gradient_wire="fp32")).job
    assert (job.dropout, job.gradient_wire) == (True, Dtype.FP32)
    assert (problem_of(ASKED).job.dropout, problem_of(ASKED).job.gradient_wire) == (False, None)
    with pytest.raises(UsageError, match="--gradient-wire: unknown dtype 'fp31'"):
        problem_of(replace(ASKED, gradient_wire="fp31"))
    mixed = replace(
        ASKED,
        cluster="aws-p3.8xlarge:3 + aws-g4dn.12xlarge:1",
        seq_len=1024,
        runtime="megatron-deepspeed",
    )
    plain, masked, wide = (
        simulate(asked, strategy="tp4 dp4 mbs2 zero0 recompute=none")
        for asked in (mixed, replace(mixed, dropout=True), replace(mixed, gradient_wire="fp32"))
    )
    assert masked.allocated_bytes > plain.allocated_bytes
    assert wide.step_time_s > plain.step_time_s


@pytest.mark.parametrize(
    ("ask", "changed"),
    [
        (plan_joint, {"space": "joint"}),
        (plan_exact, {"space": "exact", "cluster": "h100-sxm:2"}),
        (plan_mixed, {"objective": "energy"}),
        (plan_mixed, {"budget": 100.0}),
    ],
)
def test_runners_up_of_searches_that_rank_none_are_refused(
    ask: Callable[[Request], object], changed: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="ranks no next best plans, so --top 5 says nothing"):
        ask(replace(ASKED, top=5, **changed))


def test_what_is_of_another_vendor_is_neither_offered_nor_searched() -> None:
    """On AMD no overlap is searched or exported that needs NVIDIA's userbuffers, nor DeepEP."""
    base = Request(
        model="mixtral-8x7b",
        cluster="mi300x:8",
        seq_len=1024,
        global_batch=64,
        runtime="megatron-core",
    )
    searched = {}
    for cluster in ("mi300x:8", "h100-sxm:8"):
        problem = problem_of(replace(base, cluster=cluster))
        space = space_of(replace(base, cluster=cluster), problem, facts_of(problem))
        searched[cluster] = {name for name, _ in space.options} & {"tp_overlap", "dispatcher"}
    assert searched == {"mi300x:8": set(), "h100-sxm:8": {"tp_overlap", "dispatcher"}}
    for option in ("tp_overlap=userbuffers", "dispatcher=flex"):
        with pytest.raises(RuntimeModelError, match=f"mi300x cannot run {option}"):
            problem_of(
                replace(base, cluster="h100-sxm:8+mi300x:8", runtime=f"megatron-core {option}")
            )


def test_a_kernel_that_the_devices_do_not_have_is_not_offered() -> None:
    """cuDNN's fused attention and FlashAttention-2 need compute capability 8.0; the plan is priced
    with the device's own kernel."""
    base = Request(
        model="llama-3.2-1b",
        cluster="v100-sxm-16gb:8",
        seq_len=1024,
        global_batch=64,
        runtime="megatron-core",
    )
    offered = offered_values(problem_of(base).runtime)["attention"]
    assert offered == ("unfused",)
    assert offered_values(problem_of(replace(base, cluster="mi300x:8")).runtime)["attention"] == (
        "flash-2",
        "unfused",
    )
    assert offered_values(problem_of(replace(base, cluster="h100-sxm:8")).runtime)["attention"] == (
        "cudnn",
        "flash-2",
        "unfused",
    )
    with pytest.raises(
        RuntimeModelError, match="v100-sxm-16gb has no kernel for attention=flash-2"
    ) as caught:
        problem_of(
            replace(
                base,
                cluster="v100-sxm-16gb:8+a100-sxm-80gb:8",
                runtime="megatron-core attention=flash-2",
            )
        )
    assert caught.value.hint == "attention=unfused"
    for cluster in ("v100-sxm-16gb:8", "mi300x:8", "t4:8"):
        found = simulate(replace(base, cluster=cluster), strategy="dp8 mbs1")
        assert not any("cudnn" in source.quantity for source in found.sources)
