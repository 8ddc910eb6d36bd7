"""A step takes as long whatever other devices the cluster has: prices depend on the devices of the
plan and the links between them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.plan.pipeline_order import Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.simulator.general import problem_for
from tests.strategy.zoo_models import dense
from tests.strategy.zoo_plans import zoo
from tests.tiers import seeds

IDLE = (
    "h100-sxm:16",
    "t4:4",
    "a100-sxm-80gb:8",
    "gb200-nvl72:72",
    "v100-sxm-32gb:16",
    "l40s:8",
    "h200-sxm:24",
)
CASES = [case for case in zoo() if case.trains and case.plan.devices <= 64]


@pytest.mark.parametrize("seed", seeds(6, 300, first=1400))
def test_idle_devices_change_nothing(seed: int) -> None:
    generator = random.Random(seed)
    case = generator.choice(CASES)
    idle = "+".join(generator.sample(IDLE, generator.randint(1, 3)))
    problem = Problem(
        model=case.model,
        cluster=parse_cluster(case.cluster),
        job=case.job,
        runtime=load_runtime("megatron-core"),
    )
    larger = replace(problem, cluster=parse_cluster(f"{case.cluster}+{idle}"))
    alone, beside = simulate_plan(problem, case.plan), simulate_plan(larger, case.plan)
    assert beside.step_time_s == pytest.approx(alone.step_time_s, rel=1e-12), (
        f"{case.name} on {case.cluster} beside {idle}"
    )
    assert [dict(m.items) for m in beside.memory] == [dict(m.items) for m in alone.memory]


def behind(plan: Plan, devices: int) -> Plan:
    """The plan on devices that come so many later."""
    lanes = tuple(
        replace(
            lane, stages=tuple(replace(stage, base=stage.base + devices) for stage in lane.stages)
        )
        for lane in plan.lanes
    )
    orders = tuple(
        (
            replace(order, rows=tuple((first + devices, row) for first, row in order.rows))
            if isinstance(order, Table)
            else order
        )
        for order in plan.orders
    )
    return replace(plan, devices=plan.devices + devices, lanes=lanes, orders=orders)


@pytest.mark.parametrize("seed", seeds(6, 300, first=5200))
def test_idle_devices_in_front_change_nothing(seed: int) -> None:
    """Nor does it matter in which order the groups of nodes are named."""
    generator = random.Random(seed)
    case = generator.choice(CASES)
    used = parse_cluster(case.cluster)
    idle = "+".join(
        generator.sample(
            [one for one in IDLE if parse_cluster(one).node != used.groups[0].kind],
            generator.randint(1, 3),
        )
    )
    problem = Problem(
        model=case.model, cluster=used, job=case.job, runtime=load_runtime("megatron-core")
    )
    larger = replace(problem, cluster=parse_cluster(f"{idle}+{case.cluster}"))
    alone = simulate_plan(problem, case.plan)
    beside = simulate_plan(larger, behind(case.plan, parse_cluster(idle).num_devices))
    assert beside.step_time_s == pytest.approx(alone.step_time_s, rel=1e-12), (
        f"{case.name} on {case.cluster} behind {idle}"
    )
    assert sorted(sorted(m.items) for m in beside.memory) == sorted(
        sorted(m.items) for m in alone.memory
    )


def test_idle_devices_are_no_part_of_the_interval_nor_of_the_peak() -> None:
    problem = problem_for(dense(), batch=8)
    plan = parse_plan(
        "plan one devices 8\nlane main samples 8 in 1\n  stages embed+8+head on 0\n    all ="
        " b8\norder gpipe(main)\n"
    )
    alone = predict_plan(problem, plan, with_sources=False)
    beside = predict_plan(
        replace(problem, cluster=parse_cluster("h100-sxm:8+t4:8")), plan, with_sources=False
    )
    assert (beside.mfu_full, beside.idle_devices) == (pytest.approx(alone.mfu_full, rel=1e-12), 8)
    assert beside.interval_s == pytest.approx(alone.interval_s, rel=1e-12)


PIPE = """plan pipe devices 8
lane main samples 16 in 8
  stages embed+2, 2, 2, 2+head on {places}
    all = t2
order 1f1b(main)
"""


@pytest.mark.parametrize(
    "groups",
    [
        ("h100-sxm:8", "a100-sxm-80gb:4"),
        ("h100-sxm:8", "v100-sxm-32gb:16"),
        ("a100-sxm-80gb:8", "t4:4"),
    ],
)
def test_the_order_of_groups_does_not_matter(groups: tuple[str, str]) -> None:
    """A pipeline in the first group's node, which lies before or behind the other group."""
    first, other = groups
    shift = parse_cluster(other).num_devices
    before = problem_for(dense(), batch=16, cluster=f"{first}+{other}", seq_len=2048)
    behind = problem_for(dense(), batch=16, cluster=f"{other}+{first}", seq_len=2048)
    plans = [
        PIPE.format(places=", ".join(str(start + 2 * n) for n in range(4))) for start in (0, shift)
    ]
    found = [
        simulate_plan(
            problem, parse_plan(text.replace("devices 8", f"devices {8 + start}"))
        ).step_time_s
        for problem, text, start in zip((before, behind), plans, (0, shift), strict=True)
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-12)


ZONED = """plan zoned devices 16
lane main samples 16 in {microbatches}
  stages embed+4, 4+head on 0, 8
    all = b2 t4
    stream = b2 s4
order 1f1b(main)
"""


def test_a_pipeline_between_zones_waits_for_their_link() -> None:
    """Two stages of 8 devices: what the second gets, and the first gets back, passes the link; a
    zone that is idle changes nothing."""
    plan = parse_plan(ZONED.format(microbatches=8))
    seconds = {}
    for name, cluster in {
        "one zone": "h100-sxm:8+a100-sxm-80gb:8",
        "wide": "h100-sxm:8@a+a100-sxm-80gb:8@b,a~b=3200gbps/0ms",
        "narrow": "h100-sxm:8@a+a100-sxm-80gb:8@b,a~b=10gbps/20ms",
        "narrow back": "h100-sxm:8@a+a100-sxm-80gb:8@b,a~b=3200gbps/0ms,b~a=10gbps/20ms",
        "idle beside": (
            "h100-sxm:8@a+a100-sxm-80gb:8@b+t4:16@c,a~b=10gbps/20ms,a~c=1gbps/200ms,b~c=1gbps/200ms"
        ),
    }.items():
        seconds[name] = simulate_plan(
            problem_for(dense(), batch=16, cluster=cluster, seq_len=2048), plan
        ).step_time_s
    assert seconds["wide"] == pytest.approx(seconds["one zone"], rel=1e-12)
    assert seconds["one zone"] < seconds["narrow back"] < seconds["narrow"]
    # There and back again of the last microbatch, at least.
    assert seconds["narrow"] - seconds["one zone"] > 2 * 0.02
    assert seconds["idle beside"] == pytest.approx(seconds["narrow"], rel=1e-12)


def test_gradients_summed_over_zones_pass_their_slowest_link() -> None:
    plan = parse_plan(
        "plan wide devices 24\nlane main samples 24 in 1\n  stages embed+8+head on 0\n    all ="
        " b24\norder gpipe(main)\n"
    )
    seconds = [
        simulate_plan(
            problem_for(dense(), batch=24, cluster=cluster, seq_len=2048), plan
        ).step_time_s
        for cluster in (
            "h100-sxm:24",
            "h100-sxm:8@a+h100-sxm:8@b+h100-sxm:8@c,a~b=100gbps/0ms,a~c=100gbps/0ms,b~c=100gbps/0ms",
            "h100-sxm:8@a+h100-sxm:8@b+h100-sxm:8@c,a~b=100gbps/0ms,a~c=100gbps/0ms,b~c=100gbps/0ms,c~b=1gbps/0ms",
        )
    ]
    assert seconds[0] < seconds[1] < seconds[2]
