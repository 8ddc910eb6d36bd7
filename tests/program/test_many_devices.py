"""Laid plans are what each device by itself says, and take memory by classes of devices rather than
by devices."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import pytest

from shardwright.cost.network.disable_fused_overlap_beyond_nvlink import _leaves_island
from shardwright.cost.network.stage_transfers import crossing_of
from shardwright.hardware.device_partition_by_network_level import Units, equal_units
from shardwright.model.ir.operator import OperatorClass
from shardwright.program.device_classes_with_equal_actions import class_numbers
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_cuts_in_placement_tree import StageCells
from shardwright.program.stages.device_equivalence_traits import Trait, message_traits, reach_trait
from shardwright.program.stages.stage_messages import Messages
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid
from shardwright.strategy.plan.operator_split_tree import devices_of
from shardwright.strategy.text.grid_notation import parse_grid
from tests.program.small import cluster_of, problem_of
from tests.program.test_projection import cells_of, random_tree
from tests.simulator.test_folding import drawn
from tests.strategies import dense_model
from tests.tiers import cases, in_both, many, random_of


@in_both
def test_devices_classes_and_families_are_those_of_every_device() -> None:
    """Stages have the devices of their trees' leaves; a class has the devices of one row and of one
    family in each of their stages."""
    draw, smaller = random_of("laid"), 0
    for _ in range(many(12, 125)):
        problem, grid = drawn(draw)
        program = simulate_grid(problem, grid).program
        did: dict[int, list[object]] = {}
        for lane, lane_stages in zip(program.plan.lanes, program.stages, strict=True):
            for written, stage in zip(lane.stages, lane_stages, strict=True):
                leaves = {
                    device
                    for p in written.placements
                    for device in devices_of(p.split, written.base + p.offset)
                }
                assert list(stage.devices) == sorted(leaves), grid
                assert Counter(device for family in stage.families for device in family) == Counter(
                    leaves
                ), grid
                for number, family in enumerate(stage.families):
                    assert list(family) == sorted(family)
                    for device in family:
                        did.setdefault(device, []).append((stage.lane, stage.chunk, number))
        for number, row in enumerate(program.rows.devices):
            for device in row:
                did[device].append(number)
        classes: dict[str, list[int]] = {}
        for device in sorted(did):
            classes.setdefault(repr(did[device]), []).append(device)
        assert sorted(map(list, (one.devices for one in program.classes))) == sorted(
            classes.values()
        ), grid
        number_of = class_numbers(program.classes)
        assert all(
            number_of[device] == k
            for k, one in enumerate(program.classes)
            for device in one.devices
        )
        smaller += len(classes) < len(did)
    assert smaller


def spread(group: list[int], unit: Units) -> list[int]:
    """How many members of a group are in each unit that has some."""
    return sorted(Counter(unit.at(device) for device in group).values())


def brute_reach(cells: StageCells, base: int, units: tuple[Units, ...]) -> dict[int, list[object]]:
    """Of each device how the devices that differ from it only in some dims lie in the units, for
    each set of dims."""
    found: dict[int, list[object]] = {device: [] for device in cells.devices}
    tree = dict(cells.cells[OperatorClass.MLP].items())
    dims = sorted(
        {dim for cell in tree.values() for dim, _ in cell.ways}, key=lambda dim: dim.value
    )
    for chosen in (some for n in range(1, len(dims) + 1) for some in combinations(dims, n)):
        groups: dict[object, list[int]] = {}
        for device, cell in tree.items():
            groups.setdefault(tuple(way for way in cell.ways if way[0] not in chosen), []).append(
                device
            )
        for group in groups.values():
            for device in group:
                found[device].append(
                    [spread([base + one for one in group], unit) for unit in units]
                )
    return found


def parted(devices: list[int], marks: list[object]) -> set[frozenset[int]]:
    """The devices with equal marks together."""
    found: dict[str, set[int]] = {}
    for device, mark in zip(devices, marks, strict=True):
        found.setdefault(repr(mark), set()).add(device)
    return set(map(frozenset, found.values()))


@pytest.mark.parametrize("seed", cases(range(40), 20))
def test_devices_differ_in_how_their_groups_lie(seed: int) -> None:
    draw = Random(seed)
    cells, base, node = (
        cells_of(random_tree(draw, equal=seed % 4 > 0)),
        draw.choice((0, 0, 3, 8)),
        draw.choice((2, 4, 8)),
    )
    units = (
        equal_units((node, 3 * node, 1000)),
        (Units(first=(0, 6), size=(2, 3), number=(0, 3)), *equal_units((1000,))),
    )[seed % 3 == 0]
    trait, wanted = reach_trait(cells, base, units), brute_reach(cells, base, units)
    devices = trait.meet().devices.tolist()
    assert devices == list(cells.devices)
    assert parted(devices, trait.marks.tolist()) == parted(list(wanted), list(wanted.values()))
    assert trait.plain == (len(set(map(repr, wanted.values()))) == 1)


@pytest.mark.parametrize("seed", cases(range(40), 20))
def test_tensor_parallel_groups_that_leave_their_island(seed: int) -> None:
    draw = Random(seed)
    cells, base = cells_of(random_tree(draw, equal=seed % 4 > 0)), draw.choice((0, 1, 4))
    islands = equal_units((draw.choice((2, 3, 4, 8, 16)),))[0]
    groups: dict[object, list[int]] = {}
    for device, cell in cells.cells[OperatorClass.MLP].items():
        groups.setdefault(tuple(way for way in cell.ways if way[0].value in "bsx"), []).append(
            device
        )
    assert _leaves_island(cells, base, islands) == any(
        len(spread([base + d for d in group], islands)) > 1 for group in groups.values()
    )


def sends(draw: Random, *, single: bool) -> list[tuple[int, int, int]]:
    """Messages from some of devices 0 to 11 to some of 12 to 23; `single`: each sends one and gets
    one at most, both in order."""
    count = draw.randint(1, 8)
    ends = [
        sorted(draw.sample(range(first, first + 12), count))
        if single
        else draw.choices(range(first, first + 12), k=count)
        for first in (0, 12)
    ]
    pairs = sorted(set(zip(*ends, strict=True)))
    return [(source, target, draw.choice((0, 5, 7))) for source, target in pairs]


def met(trait: Trait) -> dict[int, set[int]]:
    """Whom each device of a trait meets."""
    grouping = trait.meet()
    groups = [{member for member in group if member >= 0} for group in grouping.groups.tolist()]
    return {
        device: set().union(*(groups[number] for number in numbers if number >= 0))
        for device, numbers in zip(grouping.devices.tolist(), grouping.of.tolist(), strict=True)
    }


@pytest.mark.parametrize("seed", cases(range(60), 30))
def test_messages_tell_apart_who_sends_and_who_gets(seed: int) -> None:
    """Elements that a device sends, or gets, over each tier, and to whom; and the crossing of each
    class."""
    draw = Random(seed)
    written = sends(draw, single=seed % 2 == 0)
    units = equal_units((draw.choice((2, 8)), 16, 1000))
    array = np.array(written, dtype=np.int64)
    for way, trait in enumerate(message_traits(Same(array), 0, units)):
        over: dict[int, Counter[int]] = {}
        to: dict[int, set[int]] = {}
        for message in written:
            mine, other = message[way], message[1 - way]
            tier = next(k for k, unit in enumerate(units) if unit.at(mine) == unit.at(other))
            over.setdefault(mine, Counter())[tier] += message[2]
            to.setdefault(mine, set()).add(other)
        devices = trait.meet().devices.tolist()
        assert devices == sorted(over)
        assert met(trait) == to
        assert trait.full == (len({len(some) for some in to.values()}) == 1)
        assert parted(devices, trait.marks.tolist()) == parted(
            sorted(over), [sorted((+over[device]).items()) for device in sorted(over)]
        )
    problem = problem_of(dense_model(), cluster_of(24, node=8))
    class_of = np.array(
        [draw.randrange(2) for _ in range(12)] + [draw.randrange(2, 4) for _ in range(12)],
        dtype=np.int32,
    )
    for klass in {int(class_of[source]) for source, *_ in written}:
        found = crossing_of(problem, Messages(base=0, sends=array), klass, class_of)
        mine_of = [message for message in written if class_of[message[0]] == klass]
        sent, into, arriving = Counter[int](), Counter[int](), Counter[int]()
        for source, target, elements in mine_of:
            sent[source] += elements
            into[target] += elements
        for _, target, elements in written:
            arriving[target] += elements
        assert found.sent == max(sent.values())
        assert found.most == max(*sent.values(), *(arriving[target] for target in into), 0)
        assert dict(found.into) == {
            int(k): max(into[t] for t in into if class_of[t] == k)
            for k in {class_of[t] for t in into}
        }


def laid(dp: int) -> tuple[int, int, int, SimulatedPlan]:
    """Of a plan of `dp` replicas: its devices, the most bytes that simulating it takes, and the
    blocks of memory that it keeps."""
    grid = parse_grid(f"tp8 sp pp4 dp{dp} mbs1 zero1")
    problem = problem_of(
        dense_model(layers=8), cluster_of(grid.devices, node=8), global_batch=4 * dp, seq_len=256
    )
    gc.collect()
    tracemalloc.start()
    try:
        result = simulate_grid(problem, grid)
        _, most = tracemalloc.get_traced_memory()
        blocks = sum(one.count for one in tracemalloc.take_snapshot().statistics("filename"))
    finally:
        tracemalloc.stop()
    return grid.devices, most, blocks, result


GROWTH = f"""
import gc
from {__name__} import laid

laid(9)
gc.disable()
(few, few_bytes, few_blocks, one), (many, many_bytes, many_blocks, other) = laid(61), laid(509)
assert len(one.program.classes) == len(other.program.classes) == 4
assert all(not c.devices.offsets and len(c.devices.levels) == 1 for c in other.program.classes)
print((many_bytes - few_bytes) / (many - few), (many_blocks - few_blocks) / (many - few))
"""


def test_memory_is_that_of_classes_of_devices() -> None:
    """Four classes whatever the number of replicas. A device more takes no Python object, and a few
    numbers of arrays for a while.

    A process of its own, without collections of garbage: what earlier tests left in caches, and
    when garbage is collected, changed the bytes by half.

    Before device lists a device took 325 bytes and 2.5 objects here. What is left are the messages
    between stages, the sums that devices have a part in, and 12 objects for each replica.
    """
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *sys.path])
    output = subprocess.check_output(
        [sys.executable, "-c", GROWTH], env={**os.environ, "PYTHONPATH": path}, text=True
    )
    bytes_of_one, blocks_of_one = map(float, output.split())
    assert bytes_of_one < 100
    assert blocks_of_one < 0.5
