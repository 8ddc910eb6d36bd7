"""Host memory of nodes: what devices offload adds up over a node, and a plan fits only where every
node has room for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.program.strategy_rule_violations import facts_of
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.answer_summary_text import NO_FIT, verdict
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.enumerate_members import enumerate_members, member_grid
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.simulator.peak_host_memory import nodes_of
from shardwright.simulator.predict_plan import predict
from shardwright.simulator.prediction import HostMemory, host_lack
from shardwright.simulator.simulate_plan import (
    SimulatedPlan,
    plan_of_grid,
    simulate_grid,
    simulate_plan,
)
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import lone_stages
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.units import GIB
from tests.jobs import training_job
from tests.program.small import cluster_of, problem_of
from tests.search.brute import count
from tests.search.problems import Case, small_case
from tests.strategies import dense_model
from tests.tiers import chosen, examples, in_both, many, numbers


def with_host(cluster: Cluster, *, memory_bytes: int) -> Cluster:
    """The cluster with so much host memory in every node; 0 = nobody says."""
    groups = (
        replace(
            g,
            kind=replace(g.kind, host=replace(g.kind.host, memory_bytes=memory_bytes, origin=None)),
        )
        for g in cluster.groups
    )
    return replace(cluster, groups=tuple(groups))


def small(runtime: str, *, devices: int = 4, node: int = 2, memory_bytes: int = 2**40) -> Problem:
    cluster = with_host(cluster_of(devices, node=node), memory_bytes=memory_bytes)
    return problem_of(dense_model(), cluster, runtime=load_runtime(runtime), seq_len=256)


def hosts(problem: Problem, strategy: str) -> tuple[HostMemory, ...]:
    return simulate_grid(problem, parse_grid(strategy)).host_memory


def only(found: tuple[HostMemory, ...]) -> HostMemory:
    assert len(found) == 1
    return found[0]


def test_nothing_that_stays_on_devices_is_in_host_memory() -> None:
    assert hosts(small("deepspeed"), "dp4 mbs1 zero3 recompute=full") == ()


def test_bytes_of_a_node_add_up_over_its_devices() -> None:
    """DeepSpeed's own numbers: 16 bytes a parameter with the optimizer there, 18 with the
    parameters too, and half as much again."""
    problem = small("deepspeed")
    parameters = problem.model.num_parameters
    host = only(hosts(problem, "dp4 mbs1 zero3 recompute=none offload=100 param_offload=on"))
    assert (host.nodes, host.devices, host.node) == (2, 2, 0)
    items = dict(host.items)
    # Shards are rounded up to whole elements, device by device.
    assert items["optimizer"] == pytest.approx(12 * parameters / 2, rel=1e-4)
    assert items["gradients"] == pytest.approx(4 * parameters / 2, rel=1e-4)
    assert items["parameters"] == pytest.approx(2 * parameters / 2, rel=1e-4)
    assert items["buffers"] == pytest.approx(9 * parameters / 2, rel=1e-4)
    assert host.need == sum(items.values())
    assert only(hosts(problem, "dp4 mbs1 zero3 recompute=none offload=100")).need == pytest.approx(
        24 * parameters / 2, rel=1e-4
    )


def test_replicas_without_zero_offload_all_states_each() -> None:
    """Megatron-Core: an fp32 copy, two moments and a gradient of each parameter that a device holds
    whole."""
    problem = small("megatron-core")
    assert (
        only(hosts(problem, "dp4 mbs1 zero0 recompute=none offload=100")).need
        == 2 * 16 * problem.model.num_parameters
    )
    assert (
        only(hosts(problem, "dp4 mbs1 zero0 recompute=none offload=50")).need
        == 2 * 8 * problem.model.num_parameters
    )


def test_states_are_on_the_device_or_in_host_memory() -> None:
    """Whatever the share, none is lost and none is twice."""
    problem = small("megatron-core")

    def states(offload: int) -> int:
        done = simulate_grid(
            problem, parse_grid(f"dp4 mbs1 zero1 recompute=none offload={offload}")
        )
        away = sum(host.nodes * dict(host.items)["optimizer"] for host in done.host_memory)
        return away + sum(one.devices * dict(one.items)["optimizer"] for one in done.memory)

    assert len({states(offload) for offload in (0, 1, 33, 50, 99, 100)}) == 1


def test_offloaded_activations_wait_from_forward_to_backward() -> None:
    """What leaves the device is in host memory: by a policy, by layers, and the inputs of layers
    that run again."""
    maxtext = "dp4 mbs1 zero0 recompute=selective remat="
    kept = simulate_grid(small("maxtext"), parse_grid(f"{maxtext}save_dot_except_mlp"))
    away = simulate_grid(small("maxtext"), parse_grid(f"{maxtext}attention_offloaded"))
    saved = [dict(one.memory[0].items)["activations"] for one in (kept, away)]
    assert dict(only(away.host_memory).items) == {"activations": 2 * (saved[0] - saved[1])}
    problem = small("megatron-core")
    plain, layers = (
        simulate_grid(problem, parse_grid(f"dp4 mbs1 zero0 recompute=none {more}"))
        for more in ("", "host=3")
    )
    moved = dict(plain.memory[0].items)["activations"] - dict(layers.memory[0].items)["activations"]
    assert dict(only(layers.host_memory).items) == {"activations": 2 * moved}
    deepspeed = small("deepspeed")
    full, parked = (
        simulate_grid(deepspeed, parse_grid(f"dp4 mbs1 zero1 recompute=full {more}"))
        for more in ("", "cpu_checkpoints=on")
    )
    moved = dict(full.memory[0].items)["activations"] - dict(parked.memory[0].items)["activations"]
    assert dict(only(parked.host_memory).items) == {"activations": 2 * moved}


def test_microbatches_in_flight_are_in_host_memory_at_once() -> None:
    problem = small("deepspeed", devices=4, node=1)
    by_stage = {
        host.node: host.need
        for host in hosts(
            problem, "pp4 dp1 mbs1 zero0 recompute=full schedule=1f1b cpu_checkpoints=on"
        )
    }
    assert by_stage[0] > by_stage[1] > by_stage[2] > by_stage[3] > 0


def test_nodes_of_unlike_stages_are_told_apart() -> None:
    """Each node's need is what its own stages hold; the fullest comes first."""
    problem = small("megatron-core", devices=4, node=1)
    found = hosts(problem, "pp4 dp1 mbs1 zero0 recompute=none offload=100 schedule=1f1b")
    assert sum(host.nodes for host in found) == 4
    assert [host.need for host in found] == sorted((host.need for host in found), reverse=True)
    assert (
        sum(host.nodes * dict(host.items)["optimizer"] for host in found)
        >= 12 * problem.model.num_parameters
    )


def test_a_plan_fits_to_the_byte() -> None:
    strategy = parse_grid("dp4 mbs1 zero1 recompute=none offload=100")
    need = only(hosts(small("megatron-core"), print_grid(strategy))).need
    enough, short, unsaid = (
        small("megatron-core", memory_bytes=size) for size in (need, need - 1, 0)
    )
    assert simulate_grid(enough, strategy).fits
    assert simulate_grid(unsaid, strategy).fits
    done = simulate_grid(short, strategy)
    assert not done.fits
    assert not done.fits_in(10**15)
    assert host_lack(done.host_memory).startswith(
        "the host memory of each of 2 nodes by 1 B (needs "
    )
    said = verdict(predict(short, strategy))
    assert said.startswith(f"{NO_FIT}: the host memory of each of 2 nodes by 1 B")
    assert "stage" not in said


def test_unstated_host_memory_is_assumed_unlimited_on_the_screen() -> None:
    strategy = parse_grid("dp4 mbs1 zero1 recompute=none offload=100")
    said = {
        size: {
            s.quantity for s in predict(small("megatron-core", memory_bytes=size), strategy).sources
        }
        for size in (0, 2**40)
    }
    assert "unlimited host memory" in said[0]
    assert "host memory" in said[2**40]
    plain = predict(small("megatron-core"), parse_grid("dp4 mbs1 zero1 recompute=none"))
    assert not [s for s in plain.sources if "host" in s.quantity]


def same(one: SimulatedPlan, other: SimulatedPlan) -> bool:
    return one.host_memory == other.host_memory


@pytest.mark.parametrize(
    "strategy",
    [
        "dp2 pp2 mbs1 zero1 recompute=none offload=50 schedule=1f1b order=tp-cp-ep-dp-pp",
        "tp2 dp2 mbs1 zero1 recompute=full offload=100 order=tp-cp-ep-dp-pp cpu_checkpoints=on",
        "dp4 mbs1 zero3 recompute=none offload=100 param_offload=on",
    ],
)
def test_a_grid_and_its_plan_folded_or_not_need_the_same(strategy: str) -> None:
    problem, grid = small("deepspeed"), parse_grid(strategy)
    own = under(problem, grid.options)
    plan = plan_of_grid(own, grid)
    folded, unfolded = simulate_plan(problem, plan), simulate_plan(problem, plan, unfolded=True)
    assert folded.host_memory == unfolded.host_memory == simulate_grid(problem, grid).host_memory
    assert folded.host_memory


def test_nodes_are_numbered_group_by_group() -> None:
    cluster = parse_cluster("h100-sxm:16+v100-sxm-32gb:16")
    assert nodes_of(cluster, np.array([0, 7, 8, 15, 16, 31])).tolist() == [0, 0, 1, 1, 2, 3]


def test_each_kind_of_node_is_held_against_its_own_host_memory() -> None:
    model = load_model("llama-3.1-8b")
    job, runtime = training_job(seq_len=1024, global_batch=16), load_runtime("megatron-core")
    problem = Problem(
        model=model, cluster=parse_cluster("h100-sxm:8+v100-sxm-32gb:8"), job=job, runtime=runtime
    )
    found = hosts(
        problem,
        "tp8 pp2 dp1 mbs1 zero0 recompute=full offload=100 schedule=1f1b order=tp-cp-ep-dp-pp",
    )
    assert {host.kind: host.capacity // GIB for host in found} == {
        "h100-sxm-x8": 2048,
        "v100-sxm-32gb-x8": 768,
    }


# Gradients that leave as they are reduced.


@pytest.mark.parametrize(("zero", "here"), [(1, 2.0), (2, 0.0), (3, 0.0)])
def test_gradients_of_offloaded_states_lie_in_host_memory_alone_from_zero2_on(
    zero: int, here: float
) -> None:
    """DeepSpeed's page of memory counts 2 bytes a parameter on the device under ZeRO-2 with the
    optimizer on the host: no gradients."""
    problem = small("deepspeed")
    done = simulate_grid(problem, parse_grid(f"dp4 mbs1 zero{zero} recompute=none offload=100"))
    assert dict(done.memory[0].items)["gradients"] == here * problem.model.num_parameters
    assert dict(only(done.host_memory).items)["gradients"] == pytest.approx(
        4 * problem.model.num_parameters / 2, rel=1e-4
    )
    half = simulate_grid(problem, parse_grid(f"dp4 mbs1 zero{zero} recompute=none offload=50"))
    whole = simulate_grid(problem, parse_grid(f"dp4 mbs1 zero{zero} recompute=none"))
    own, full = (dict(one.memory[0].items)["gradients"] for one in (half, whole))
    assert own == (full // 2 if zero >= 2 else full)


def test_other_runtimes_keep_gradients_on_the_device() -> None:
    problem = small("megatron-core")
    done = simulate_grid(problem, parse_grid("dp4 mbs1 zero1 recompute=none offload=100"))
    assert dict(done.memory[0].items)["gradients"] == 4 * problem.model.num_parameters


@pytest.mark.parametrize(
    "text",
    ["dp4 mbs1 zero2 recompute=none offload=100", "dp1 mbs1 zero2 recompute=full offload=100"],
)
def test_gradients_cross_to_the_host_and_back_in_every_microbatch(text: str) -> None:
    """Over a slow link: 2 x 2 bytes an element and microbatch, of the embedding once more, behind
    the last layer; and 2 of parameters."""
    grid, rate = parse_grid(text), 1e5
    problem = small("deepspeed", devices=grid.dp, node=grid.dp)
    (group,) = problem.cluster.groups
    pcie = replace(group.kind.host.pcie, bandwidth=rate, efficiency=1.0)
    slow = replace(
        group,
        kind=replace(group.kind, host=replace(group.kind.host, pcie=pcie, memory_bandwidth=1e15)),
    )
    done = simulate_grid(replace(problem, cluster=replace(problem.cluster, groups=(slow,))), grid)
    microbatches, elements = problem.job.global_batch // grid.dp, problem.model.num_parameters
    embedding = problem.model.vocab * problem.model.hidden
    moved = 4 * microbatches * (elements + embedding) + 2 * elements
    assert done.step_time_s == pytest.approx(moved / grid.dp / rate, rel=0.02)


@pytest.mark.parametrize("zero", [2, 3])
def test_one_rank_keeps_its_gradients_in_host_memory_too(zero: int) -> None:
    """ZeRO-Offload on one device: 2 bytes a parameter there; ZeRO-2 stands for ZeRO-3, which shards
    nothing more."""
    problem = small("deepspeed", devices=1, node=1)
    grid = parse_grid(f"dp1 mbs1 zero{zero} recompute=none offload=100")
    assert canonical(grid, facts=facts_of(problem)).zero == 2
    items = dict(simulate_grid(problem, grid).memory[0].items)
    assert (items["parameters"], items["gradients"]) == (2 * problem.model.num_parameters, 0)


# ZeRO-3 whose shards wait in host memory.


@pytest.mark.parametrize(
    ("runtime", "option"), [("deepspeed", " param_offload=on"), ("deepspeed param_offload=on", "")]
)
def test_zero3_on_one_rank_keeps_what_waits_in_host_memory(runtime: str, option: str) -> None:
    problem = small(runtime, devices=1, node=1)
    grid = parse_grid(f"dp1 mbs1 zero3 recompute=none offload=100{option}")
    assert canonical(grid, facts=facts_of(problem)) == grid
    done = simulate_grid(problem, grid)
    items = dict(only(done.host_memory).items)
    assert items["parameters"] == 2 * problem.model.num_parameters
    assert items["optimizer"] == 12 * problem.model.num_parameters
    on_device = dict(done.memory[0].items)["parameters"]
    assert 0 < on_device < 2 * problem.model.num_parameters
    # Every layer is copied up for its forward and for its backward.
    plain = simulate_grid(
        small("deepspeed", devices=1, node=1),
        parse_grid("dp1 mbs1 zero0 recompute=none offload=100"),
    )
    rate = problem.cluster.node.host.pcie.achieved
    microbatches = problem.job.global_batch
    assert (
        done.step_time_s - plain.step_time_s
        > 1.5 * microbatches * 2 * problem.model.num_parameters / rate
    )


TWO_LANES = """plan two devices 4
options param_offload=on
zero all: all/all/all lanes=a gather=use reduce=microbatch unit=dim0
zero all: all/all/all lanes=b gather=use reduce=microbatch unit=dim0
lane a samples {samples} in 1
  stages embed+8+head on 0
    all = b2
lane b samples {samples} in 1
  stages embed+8+head on 2
    all = b2
order 1f1b(a)
order 1f1b(b)
"""


def test_shards_of_lanes_that_share_for_themselves_wait_in_host_memory_too() -> None:
    """Each lane has all parameters once, on the host of its own node, whoever has their optimizer
    states."""
    problem = small("deepspeed")
    done = simulate_plan(
        problem, parse_plan(TWO_LANES.format(samples=problem.job.global_batch // 2))
    )
    (host,) = done.host_memory
    assert (host.nodes, host.devices) == (2, 2)
    assert dict(host.items)["parameters"] == pytest.approx(
        2 * problem.model.num_parameters, rel=1e-4
    )
    # What a device makes whole is all that it has of them: embedding and head, the layer at work
    # and the next one.
    ends, layer = 2 * problem.model.vocab * problem.model.hidden, problem.model.num_parameters / 8
    assert dict(done.memory[0].items)["parameters"] < 2 * (ends + 2 * layer)


def test_zero_on_one_rank_is_none_where_nothing_waits_in_host_memory() -> None:
    problem = small("torchtitan", devices=1, node=1)
    grid = parse_grid("dp1 mbs1 zero3 recompute=none offload=100")
    assert canonical(grid, facts=facts_of(problem)).zero == 0


@pytest.mark.parametrize("devices", chosen([1, 2], [1]))
def test_members_whose_shards_wait_in_host_memory_are_those_of_brute_force(devices: int) -> None:
    """On one device too: those of ZeRO-3, each with what its devices copy up, under bounds that
    hold."""
    problem = small("deepspeed param_offload=on", devices=devices, node=devices)
    facts = facts_of(problem)
    space = standard_space(problem, facts)
    counted = count(problem, space, facts)
    members = enumerate_members(problem, space, facts)
    assert members.num_members == len(counted.grids) > 0
    assert all(canonical(grid, facts=facts).zero == 3 for grid in counted.grids)
    bounded = bound_space(problem, space, facts, capacity=10**15)
    for place, seconds in enumerate(bounded.seconds.tolist()):
        done = simulate_grid(problem, member_grid(members, place))
        assert seconds <= done.step_time_s * (1 + 1e-12)
        assert bounded.memory[place] <= done.need + 1
        assert dict(only(done.host_memory).items)["parameters"]


# The search.


def hosted(seed: int) -> Case:
    """A small case whose plans may offload, and whose nodes have little host memory."""
    case = small_case(seed, most=many(300, 1500))
    runtime = replace(
        case.problem.runtime,
        optimizer_offload=True,
        host_gradient_bytes=4,
        host_buffer_percent=seed % 2 * 50,
        gradients_on_host=seed % 3 > 0,
    )
    values = tuple(
        (axis, (0, 50, 100) if axis == "offload" else given) for axis, given in case.space.values
    )
    problem = replace(case.problem, runtime=runtime)
    facts = replace(case.facts, lone_stages=lone_stages(runtime))
    return Case(problem=problem, facts=facts, space=replace(case.space, values=values))


@in_both
def test_a_search_drops_only_what_does_not_fit_host_memory_and_finds_the_best_that_does() -> None:
    """Against brute force: the bound is never above a member's own need, and the answer is the
    fastest that fits all nodes."""
    dropped = refused = 0
    for seed in numbers(4, 60, first=7000):
        case = hosted(seed)
        counted = count(case.problem, case.space, case.facts)
        done = {grid: simulate_grid(case.problem, grid) for grid in counted.grids.values()}
        needs = sorted({host.need for one in done.values() for host in one.host_memory})
        if not needs:
            continue
        room = needs[len(needs) // 3]
        problem = replace(case.problem, cluster=with_host(case.problem.cluster, memory_bytes=room))
        fits = {
            grid: all(host.need <= room for host in one.host_memory) for grid, one in done.items()
        }
        bounded = bound_space(problem, case.space, case.facts, capacity=10**15)
        for place, seconds in enumerate(bounded.seconds.tolist()):
            if np.isinf(seconds):
                dropped += 1
                grid = member_grid(bounded.members, place)
                assert not simulate_grid(problem, grid).fits_hosts, print_grid(grid)
        refused += sum(not fitting for fitting in fits.values())
        best = min(one.step_time_s for grid, one in done.items() if fits[grid])
        answer = find(problem, case.space, case.facts, capacity=10**15, top=1)
        assert answer.prediction.step_time_s == pytest.approx(best, rel=1e-12)
        assert answer.prediction.fits
    assert dropped
    assert refused >= dropped


@examples(25)
@given(
    shares=st.lists(st.integers(0, 100), min_size=2, max_size=2),
    runtime=st.sampled_from(("megatron-core", "deepspeed", "deepspeed-2022", "maxtext")),
    zero=st.integers(0, 3),
)
def test_a_larger_share_never_needs_less_host_memory_nor_more_of_a_device(
    shares: list[int], runtime: str, zero: int
) -> None:
    less, more = sorted(shares)
    problem = small(runtime)
    some = [
        simulate_grid(problem, parse_grid(f"dp4 mbs1 zero{zero} recompute=none offload={share}"))
        for share in (less, more)
    ]
    needs = [sum(host.nodes * host.need for host in one.host_memory) for one in some]
    assert needs[0] <= needs[1]
    assert some[0].need >= some[1].need
