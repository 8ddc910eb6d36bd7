"""Groups of the first device of a class, shifted to its other devices, are the groups of these."""

from __future__ import annotations

import pytest

from shardwright.api.report.bubble_causes import idle_pieces
from shardwright.api.report.communication_groups_content import communication_groups
from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.api.request_to_problem import problem_of
from shardwright.report.page.view_data_types.communication_groups import (
    CommunicationGroups,
    DevicePattern,
)
from shardwright.search.search_request import Request
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.simulate_plan import plan_of_grid, simulate_plan
from shardwright.simulator.traffic.bytes_sent_per_device_by_class import plan_traffic
from shardwright.strategy.text.grid_notation import parse_grid

GRIDS = (
    ("llama-2-7b", "h100-sxm:16", "tp2 sp pp4 dp2 mbs1 zero1"),
    ("llama-2-7b", "h100-sxm:16", "tp2 sp pp2 vpp2 dp4 mbs1 zero1 order=tp-cp-ep-pp-dp"),
    ("llama-2-7b", "h100-sxm:16", "tp2 sp cp2 dp4 mbs1 zero3"),
    ("llama-2-7b", "h100-sxm:16", "tp2 sp cp2 pp2 dp2 mbs1 zero1 order=cp-tp-ep-dp-pp"),
    ("mixtral-8x7b", "h100-sxm:16", "tp2 sp pp2 ep4 dp4 mbs1 zero1"),
    ("llama-2-7b", "h100-sxm:16", "dp16 mbs1 zero3 shard8 recompute=full"),
    ("llama-2-7b", "h100-sxm:16", "tp2 sp pp2 dp4 mbs1 zero1 shard2"),
)
Sent = dict[tuple[str, tuple[int, ...]], float]


def shifted(pattern: DevicePattern, device: int) -> tuple[int, ...]:
    """The devices of a pattern that is shifted along its strides so that `device` is in it.

    The script of the map does the same.
    """
    assert not pattern.offsets
    first = device
    for count, step in pattern.levels:
        first -= (device - pattern.first) // step % count * step
    devices = [first]
    for count, step in pattern.levels:
        devices = [one + place * step for one in devices for place in range(count)]
    return tuple(sorted(devices))


def simulated_step(model: str, cluster: str, text: str, *, unfolded: bool = False) -> SimulatedStep:
    """Simulated step of a grid; unfolded, each device is a class of its own."""
    problem = problem_of(Request(model=model, cluster=cluster, seq_len=2048, global_batch=16))
    plan = plan_of_grid(problem, parse_grid(text, devices=problem.cluster.num_devices))
    simulated = simulate_plan(problem, plan, unfolded=unfolded)
    return SimulatedStep(
        problem=problem,
        plan=plan,
        simulated=simulated,
        prediction=predict_plan(problem, plan, simulated, with_sources=False),
    )


def groups_of_every_device(groups: CommunicationGroups) -> dict[int, Sent]:
    """Bytes by kind and group of each device, from the groups of the first device of its class."""
    found: dict[int, Sent] = {}
    for number, device_class in enumerate(groups.classes):
        assert device_class.shifts
        pattern = device_class.devices
        members = [pattern.first]
        for count, step in pattern.levels:
            members = [one + place * step for one in members for place in range(count)]
        for device in members:
            found[device] = {
                (group.name, shifted(group.group, device)): group.sent_bytes
                for group in groups.groups
                if group.device_class == number
            }
    return found


@pytest.mark.parametrize(("model", "cluster", "text"), GRIDS)
def test_shifted_groups_are_those_of_each_device(model: str, cluster: str, text: str) -> None:
    one = simulated_step(model, cluster, text)
    pieces = idle_pieces(one.simulated.program, one.simulated.timeline)
    folded = groups_of_every_device(communication_groups(one, pieces))
    step = simulated_step(model, cluster, text, unfolded=True)
    names = {
        "tp": "tensor parallelism",
        "cp": "context parallelism",
        "ep": "expert parallelism",
        "pp": "pipeline messages",
        "sharding": "data parallelism",
    }
    traffic = plan_traffic(step.problem, step.simulated)
    assert len(folded) == len(traffic) == step.problem.cluster.num_devices
    for device_class, sent in zip(step.simulated.program.classes, traffic, strict=True):
        expected: Sent = {}
        device = device_class.devices.first
        for one_group in sent:
            level = max(tier for tier, size in enumerate(one_group.sent) if size)
            own = names[one_group.part], tuple(sorted(one_group.group))
            expected[own] = one_group.sent[level]
        found = folded[device]
        assert set(found) == set(expected)
        for key, size in expected.items():
            assert found[key] == pytest.approx(size, rel=1e-9)
