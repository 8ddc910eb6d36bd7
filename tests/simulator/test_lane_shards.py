"""Plans whose lanes shard gradients and parameters for themselves: folded as unfolded, and bytes
and seconds by independent counts."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

import pytest

from shardwright.api.request_to_problem import problem_of
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.program.strategy_rule_violations import plan_violations
from shardwright.program.training_problem import Problem
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_plan
from shardwright.simulator.traffic.bytes_sent_per_device_by_class import plan_traffic
from shardwright.strategy.text.parse_plan import parse_plan

TWO = """plan two devices {devices}
{zero}lane fast samples 48 in 6
  stages embed+32+head on 0
    all = {fast}
    recompute 0-: full
lane slow samples 16 in 4
  stages {cut}
    all = {slow}
    recompute 0-: full
order 1f1b(fast)
order 1f1b(slow)
"""
ONE, THREE = "zero all: all/1/1\n", "zero all: all/1/1\nzero all: all/all/all lanes=fast\n"
BOTH = "zero all: all/all/all lanes=fast,slow\n"
CUTS = {
    "one node each": {"fast": "b8", "cut": "embed+32+head on 8", "slow": "b2 t4", "devices": 16},
    "a pipeline": {
        "fast": "b8",
        "cut": "embed+16, 16+head on 8, 12",
        "slow": "b2 t2",
        "devices": 16,
    },
    "nodes in part": {
        "fast": "b[3:1]{b3 , .+3}",
        "cut": "embed+32+head on 8",
        "slow": "b4 t2",
        "devices": 16,
    },
    "over nodes": {"fast": "b4@3", "cut": "embed+32+head on 16", "slow": "b4@5 t2", "devices": 40},
}


@lru_cache
def problem() -> Problem:
    return problem_of(
        Request(
            model="llama-3.1-8b",
            cluster="h100-sxm:16+a100-sxm-80gb:24",
            seq_len=4096,
            global_batch=64,
        )
    )


@lru_cache
def simulated(name: str, zero: str, *, unfolded: bool = False) -> SimulatedPlan:
    return simulate_plan(
        problem(), parse_plan(TWO.format(zero=zero, **CUTS[name])), unfolded=unfolded
    )


@pytest.mark.parametrize("zero", [THREE, BOTH])
@pytest.mark.parametrize("name", CUTS)
def test_folded_is_unfolded(name: str, zero: str) -> None:
    folded, every = (simulated(name, zero, unfolded=unfolded) for unfolded in (False, True))
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-12)
    assert max(m.reserved for m in folded.memory) == max(m.reserved for m in every.memory)
    assert len(folded.program.classes) < len(every.program.classes)


def test_memory_is_that_of_the_members_of_the_lane() -> None:
    """8 H100 keep 1/8 of gradients and parameters, 2 x 4 A100 all of a quarter; a piece of the
    optimizer's states is 1/10 of a quarter."""
    elements = problem().model.num_parameters
    found = [dict(memory.items) for memory in simulated("one node each", THREE).memory]
    norms = 65 * 4096
    fast, slow = found[0], found[-1]
    assert fast["gradients"] == pytest.approx(4 * elements / 8, rel=1e-6)
    assert slow["gradients"] == pytest.approx(4 * (elements - norms) / 4 + 4 * norms, rel=1e-6)
    assert fast["optimizer"] == pytest.approx(12 * elements / 10, rel=1e-3)
    assert slow["optimizer"] == pytest.approx(12 * elements / 40, rel=1e-3)
    whole = simulated("one node each", ONE).memory[0]
    assert dict(whole.items)["gradients"] == pytest.approx(4 * elements, rel=1e-6)
    assert dict(whole.items)["optimizer"] == fast["optimizer"]


def test_gathers_stay_in_the_lane() -> None:
    """Each microbatch gathers parameters twice and reduces gradients once among the lane's 8; over
    all 10 only pieces go, once a step."""
    result = simulated("one node each", THREE)
    layers = [t for t in plan_traffic(problem(), result)[0] if t.part == "sharding"]
    inside = next(t for t in layers if t.group == DeviceList.run(0, 8))
    elements, wire = problem().model.num_parameters, 4
    assert sum(inside.sent) == pytest.approx(6 * (2 * 2 + wire) * elements * 7 / 8, rel=1e-12)
    across = [t for t in layers if set(t.group) - set(range(8))]
    assert across
    assert all(set(range(8)) < set(t.group) for t in across)
    assert sum(sum(t.sent) for t in across) <= 2 * ceil((wire + 2) * elements / 2)


def test_a_lane_gathers_as_if_there_were_no_other() -> None:
    """An action of the lane takes as long, and keeps as much, as the same lane's on a cluster of
    its own."""
    lane = (
        "lane main samples 48 in 6\n  stages embed+32+head on 0\n    all = b8\n    recompute 0-:"
        " full\n"
    )
    own = problem_of(
        Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=4096, global_batch=48)
    )
    (alone,) = simulate_plan(
        own, parse_plan(f"plan one devices 8\nzero all: all/all/all\n{lane}order 1f1b(main)\n")
    ).costs.families.values()
    beside = simulated("one node each", THREE).costs.families[0, 0, 0]
    for name in ("forward_s", "backward_s", "saved_bytes"):
        assert getattr(beside.slices[0], name) == pytest.approx(
            getattr(alone.slices[0], name), rel=1e-12
        )


def test_a_lane_alone_is_as_if_nobody_named_it() -> None:
    text = (
        "plan one devices 8\n{zero}lane main samples 64 in 8\n  stages embed+32+head on 0\n    all"
        " = b8\norder 1f1b(main)\n"
    )
    one, other = (
        simulate_plan(problem(), parse_plan(text.format(zero=f"zero all: all/all/all{named}\n")))
        for named in ("", " lanes=main")
    )
    assert one.step_time_s == other.step_time_s
    assert one.memory == other.memory


PIPES = """plan pipes devices 8
{zero}lane fast samples 48 in 6
  stages embed+16, 16+head on 0, 2
    all = t2
    recompute 0-: full
lane slow samples 16 in 4
  stages embed+16, 16+head on 4, 6
    all = t2
    recompute 0-: full
order 1f1b(fast)
order 1f1b(slow)
"""


@pytest.mark.parametrize("runtime", ["torchtitan-0.2", "megatron-core", "deepspeed-0.16"])
@pytest.mark.parametrize("zero", ["zero all: all/all/1 lanes=fast,slow\n", BOTH, THREE])
def test_lanes_of_one_replica_shard_nothing_and_step_as_with_zero1(zero: str, runtime: str) -> None:
    """Each holds its parameters once: gradients are summed over the lanes once a step, and new
    values gathered behind the update."""
    cluster = "h100-sxm:4+a100-sxm-80gb:4"
    own = problem_of(
        Request(
            model="llama-3.1-8b", cluster=cluster, seq_len=4096, global_batch=64, runtime=runtime
        )
    )
    once, lanes = (simulate_plan(own, parse_plan(PIPES.format(zero=one))) for one in (ONE, zero))
    assert lanes.step_time_s == once.step_time_s
    assert lanes.memory == once.memory
    assert plan_traffic(own, lanes) == plan_traffic(own, once)


def test_experts_that_a_lane_holds_once_are_summed_once_a_step_and_gathered_behind_the_update() -> (
    None
):
    """All else of the lanes is sharded; actions of a lane take what they do on a cluster of its
    own, where nobody else has its experts."""
    model, more = (
        "mixtral-8x7b",
        (
            "lane fast samples 48 in 6\n  stages embed+32+head on 0\n    all = b8\n    experts ="
            " e8\n    recompute 0-: full\n"
        ),
    )
    both = (
        f"{more}"
        f"{more.replace('fast samples 48 in 6', 'slow samples 32 in 4').replace('on 0', 'on 8')}"
        "order 1f1b(fast)\norder 1f1b(slow)\n"
    )
    own, alone = (
        problem_of(Request(model=model, cluster=cluster, seq_len=4096, global_batch=batch))
        for cluster, batch in (("h100-sxm:8+a100-sxm-80gb:8", 80), ("h100-sxm:8", 48))
    )
    beside = simulate_plan(own, parse_plan(f"plan two devices 16\n{BOTH}{both}"))
    one = simulate_plan(
        alone, parse_plan(f"plan one devices 8\nzero all: all/all/all\n{more}order 1f1b(fast)\n")
    )
    here, there = (done.costs.families[0, 0, 0].slices[0] for done in (beside, one))
    for name in ("forward_s", "backward_s"):
        assert getattr(here, name) == pytest.approx(getattr(there, name), rel=1e-12)
    routed = 32 * 3 * 4096 * 14336
    wire, stored = 4, 2
    sent = [
        sum(one.sent)
        for one in plan_traffic(own, beside)[0]
        if one.part == "sharding" and tuple(one.group) == (0, 8)
    ]
    assert sum(sent) == pytest.approx((wire + stored) * routed / 2, rel=1e-12)
    # As long as with ZeRO-1, whose experts' sums and gathers these are.
    plain = (
        simulate_plan(own, parse_plan(f"plan two devices 16\n{ONE}{both}"))
        .costs.families[0, 0, 0]
        .slices[0]
    )
    assert (here.gather_s + here.after_s).sum() > 0.3 * (plain.gather_s + plain.after_s).sum()


def test_the_runtime_is_asked_lane_by_lane() -> None:
    """ZeRO-3 of a lane of one stage is legal beside a pipeline, of a pipeline it is not."""
    plans = {
        zero: parse_plan(TWO.format(zero=zero, **CUTS["a pipeline"]))
        for zero in (THREE, BOTH, "zero all: all/all/all\n")
    }
    assert problem().runtime.zero_with_pipeline < 3
    found = {
        zero: [v.rule for v in plan_violations(problem(), plan)] for zero, plan in plans.items()
    }
    expected = [] if 3 in problem().runtime.zero_stages else ["runtime.zero"]
    assert found[THREE] == expected
    assert found[BOTH] == found["zero all: all/all/all\n"] == ["runtime.zero"]
