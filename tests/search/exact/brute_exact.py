"""The small joint search by brute force: every member listed by other code than the search's,
without any bound, and each simulated.

The declared space again, in other words. Devices of one label are alike. A member is: a number of
microbatches; blocks of the chain cut into stages; a stage (or none) for each device, stage numbers
not falling along a label; for each stage a tree whose leaves of one label are in rising order; for
each stage an order in which forwards come by number, backwards too, and none of them before its
forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, permutations, product
from random import Random

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.cost.bounds.straggler_jitter import jitter_factor_of_devices
from shardwright.hardware.cluster import Cluster, NodeGroup
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.exact.enumerate_tensor_split_trees import TreeSpace
from shardwright.search.exact.exact_space import ExactSpace
from shardwright.search.exact.lower_candidate_stages_to_tasks_without_order import (
    Messages,
    plan_of_stages,
    shape_tasks,
)
from shardwright.search.exact.price_one_stage_under_split_tree import (
    Illegal,
    StageOption,
    options_in_one_plan,
    price_stage,
)
from shardwright.search.exact.stage_of_block_range import stage_of_blocks
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.units import PICOSECONDS_PER_SECOND
from tests.simulator.paths import path_seconds_of

Devices = tuple[int, ...]
Tree = Split | None
Stages = tuple[tuple[int, int, Devices], ...]
"""(first block, end, devices) of each stage."""


def subsets(devices: Devices) -> Iterator[tuple[Devices, Devices]]:
    """Every way to give some devices to a first part and the others to a second one."""
    for mask in range(1, 2 ** len(devices) - 1):
        yield (
            tuple(d for i, d in enumerate(devices) if mask >> i & 1),
            tuple(d for i, d in enumerate(devices) if not mask >> i & 1),
        )


def partitions(devices: Devices, parts: int) -> Iterator[tuple[Devices, ...]]:
    """Every way to deal devices to so many parts of one size, in order."""
    for order in permutations(devices):
        size = len(devices) // parts
        dealt = tuple(order[i * size : (i + 1) * size] for i in range(parts))
        if all(list(part) == sorted(part) for part in dealt):
            yield dealt


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A tree, its leaves in order, and how it looks if devices show only their labels."""

    split: Tree
    leaves: Devices
    look: object


class Trees:
    """All trees of sets of devices."""

    def __init__(self, labels: Sequence[int], space: TreeSpace) -> None:
        self.labels, self.space = labels, space
        self.known: dict[tuple[Devices, int], list[Drawn]] = {}
        self.rising: dict[Devices, list[Tree]] = {}

    def of(self, devices: Devices) -> list[Tree]:
        """Those whose leaves of one label rise."""
        if devices not in self.rising:
            self.rising[devices] = [
                t.split for t in self._all(devices, self.space.depth) if self._rises(t.leaves)
            ]
        return self.rising[devices]

    def _rises(self, leaves: Devices) -> bool:
        return all(
            a < b
            for i, a in enumerate(leaves)
            for b in leaves[i + 1 :]
            if self.labels[a] == self.labels[b]
        )

    def _all(self, devices: Devices, depth: int) -> list[Drawn]:
        if (devices, depth) not in self.known:
            self.known[devices, depth] = list(self._draw(devices, depth))
        return self.known[devices, depth]

    def _draw(self, devices: Devices, depth: int) -> Iterator[Drawn]:
        if len(devices) == 1:
            yield Drawn(split=None, leaves=devices, look=self.labels[devices[0]])
        if len(devices) == 1 or depth == 0:
            return
        for dim in self.space.dims:
            for one, two in subsets(devices):
                for a, b in product(self._all(one, depth - 1), self._all(two, depth - 1)):
                    for weight in self.space.weights:
                        yield self._join(dim, (weight, 1), (a, b))
            for parts in range(3, len(devices) + 1):
                if len(devices) % parts:
                    continue
                for dealt in partitions(devices, parts):
                    for below in product(*(self._all(part, depth - 1) for part in dealt)):
                        single = parts == len(devices) and list(self._row(devices)) == [
                            self.labels[d] for d in self._first(below)
                        ]
                        if len({repr(b.look) for b in below}) == 1 or single:
                            yield self._join(dim, (1,) * parts, below)

    def _row(self, devices: Devices) -> Iterator[int]:
        yield from sorted(self.labels[d] for d in devices)

    def _first(self, below: Sequence[Drawn]) -> Iterator[int]:
        for one in below:
            yield one.leaves[0]

    def _join(self, dim: Dim, weights: tuple[int, ...], below: Sequence[Drawn]) -> Drawn:
        lows = [min(b.leaves) for b in below]
        steps = [low - min(lows) for low in lows]
        even = [i * (steps[1] - steps[0]) for i in range(len(steps))] == steps
        same = len({repr(b.look) for b in below}) == 1 and len({repr(b.split) for b in below}) == 1
        if set(weights) == {1} and even and same and steps[1] > 0:
            split = Split(dim=dim, parts=len(below), step=steps[1], children=(below[0].split,))
        else:
            split = Split(
                dim=dim, parts=weights, step=tuple(steps), children=tuple(b.split for b in below)
            )
        leaves = tuple(d for b in below for d in b.leaves)
        return Drawn(split=split, leaves=leaves, look=(dim, weights, tuple(b.look for b in below)))


@lru_cache(maxsize=16)
def all_trees(labels: tuple[int, ...], space: TreeSpace) -> Trees:
    """The trees of devices with these labels: one table for all who ask."""
    return Trees(labels, space)


@lru_cache(maxsize=8)
def orders_of(microbatches: int) -> list[tuple[int, ...]]:
    """Orders of one stage: 0 .. m - 1 forwards, m .. 2 m - 1 backwards."""
    found = []
    for order in permutations(range(2 * microbatches)):
        place = {action: i for i, action in enumerate(order)}
        by_number = all(
            place[k] < place[k + 1] for k in range(2 * microbatches - 1) if k != microbatches - 1
        )
        if by_number and all(place[k] < place[k + microbatches] for k in range(microbatches)):
            found.append(order)
    return found


def flying(order: Sequence[int], microbatches: int) -> int:
    """Most microbatches whose forward is done and whose backward is not."""
    held, most = 0, 0
    for action in order:
        held += 1 if action < microbatches else -1
        most = max(most, held)
    return most


def stage_lists(blocks: int, labels: Sequence[int], *, most: int) -> Iterator[Stages]:
    """Every cut with every map of devices to stages (or to none)."""
    for count in range(1, min(most, blocks) + 1):
        for ends in product(range(1, blocks + 1), repeat=count):
            if ends[-1] != blocks or any(a >= b for a, b in pairwise(ends)):
                continue
            for owner in product(range(count + 1), repeat=len(labels)):
                falls = any(
                    labels[a] == labels[b] and owner[a] > owner[b]
                    for b in range(len(labels))
                    for a in range(b)
                )
                sets = [
                    tuple(d for d, s in enumerate(owner) if s == stage) for stage in range(count)
                ]
                if not falls and all(sets):
                    yield tuple(zip((0, *ends[:-1]), ends, sets, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A problem, the label of each device, and the space."""

    problem: Problem
    labels: tuple[int, ...]
    space: ExactSpace
    blocks: int

    def sizes(self) -> tuple[int, int, int]:
        """Members; shapes; stages to price."""
        trees = all_trees(self.labels, self.space.trees)
        members, shapes = 0, 0
        stages: set[tuple[int, int, Devices, bool]] = set()
        numbers = [m for m in self.space.microbatches if self.problem.job.global_batch % m == 0]
        for listed in stage_lists(self.blocks, self.labels, most=self.space.max_stages):
            choices = int(np.prod([len(trees.of(devices)) for _, _, devices in listed]))
            shapes += choices * len(numbers)
            members += sum(choices * len(orders_of(m)) ** len(listed) for m in numbers)
            stages |= {(*stage, len(listed) == 1) for stage in listed}
        return (
            members,
            shapes,
            sum(len(trees.of(devices)) for _, _, devices, _ in stages) * len(numbers),
        )


@dataclass(slots=True)
class Found:
    """What brute force finds: the least seconds (None: nothing fits), members, and how many are
    illegal, too large, simulated."""

    best: float | None = None
    members: int = 0
    illegal: int = 0
    too_large: int = 0
    simulated: int = 0
    sampled: int = 0
    paths_above: int = 0
    prices: dict[object, StageOption | Illegal] = field(default_factory=dict)


def brute_force(instance: Instance, *, generator: Random, samples: int) -> Found:
    """Simulate every member; and of `samples` shapes one member each by `simulate_plan`, which must
    say the same."""
    problem, space, found = instance.problem, instance.space, Found()
    trees = all_trees(instance.labels, space.trees)
    _, shapes, _ = instance.sizes()
    share = samples / max(shapes, 1)
    messages: Messages = {}
    for listed in stage_lists(instance.blocks, instance.labels, most=space.max_stages):
        working = tuple(sorted(device for _, _, devices in listed for device in devices))
        factor = jitter_factor_of_devices(problem, working)
        for microbatches in space.microbatches:
            if problem.job.global_batch % microbatches:
                continue
            own = orders_of(microbatches)
            orders = np.array(list(product(own, repeat=len(listed))))
            held = np.array(
                [
                    [flying(order, microbatches) for order in row]
                    for row in product(own, repeat=len(listed))
                ]
            )
            options = [
                [
                    _priced(found, problem, stage, tree, microbatches, working)
                    for tree in trees.of(stage[2])
                ]
                for stage in listed
            ]
            for chosen in product(*options):
                found.members += len(orders)
                stages = tuple(o for o in chosen if isinstance(o, StageOption))
                if len(stages) < len(chosen):
                    found.illegal += len(orders)
                    continue
                stages = options_in_one_plan(stages)
                tasks = shape_tasks(problem, stages, microbatches=microbatches, messages=messages)
                steps = tasks.finish(orders, contended=True)
                paths = tasks.finish(orders, contended=False)
                found.paths_above += int((paths > steps).sum())
                small = (held <= np.array([o.room for o in stages])).all(axis=1)
                found.illegal += int((steps < 0).sum())
                found.too_large += int(((steps >= 0) & ~small).sum())
                fits = steps[(steps >= 0) & small]
                found.simulated += len(fits)
                if len(fits):
                    least = int(fits.min()) / PICOSECONDS_PER_SECOND * factor
                    found.best = least if found.best is None else min(found.best, least)
                if generator.random() < share:
                    _compare(problem, stages, microbatches, orders, steps, paths, small, generator)
                    found.sampled += 1
    return found


def _priced(
    found: Found,
    problem: Problem,
    stage: tuple[int, int, Devices],
    tree: Tree,
    microbatches: int,
    working: Devices,
) -> StageOption | Illegal:
    first, end, devices = stage
    key = first, end, min(devices), tree, microbatches, working
    if key not in found.prices:
        small = stage_of_blocks(problem, first=first, end=end, tree=tree, first_device=min(devices))
        found.prices[key] = price_stage(
            problem, small, first=first, end=end, microbatches=microbatches, working=working
        )
    return found.prices[key]


def _compare(
    problem: Problem,
    stages: tuple[StageOption, ...],
    microbatches: int,
    orders: IntArray,
    steps: IntArray,
    paths: IntArray,
    small: BoolArray,
    generator: Random,
) -> None:
    """One member of a shape under `simulate_plan`: the same step and path in picoseconds, and the
    same answer to whether it fits."""
    at = generator.choice([i for i in range(len(orders)) if steps[i] >= 0])
    plan = plan_of_stages(problem, stages, microbatches=microbatches, order=orders[at])
    result = simulate_plan(problem, plan)
    assert int(result.timeline.finish.max()) == int(steps[at])
    assert abs(path_seconds_of(result) / result.step_time_s - paths[at] / steps[at]) < 1e-12
    capacity = [
        g.kind.accelerator.memory_bytes
        for g in problem.cluster.groups
        for _ in range(g.count * g.kind.num_devices)
    ]
    fits = all(
        m.reserved <= capacity[c.devices[0]]
        for m, c in zip(result.memory, result.program.classes, strict=True)
    )
    assert fits == bool(small[at])


def model_of(name: str, layers: int) -> Model:
    """A catalog model with so many layers."""
    model = load_model(name)
    return replace(
        model,
        runs=tuple(replace(run, count=layers) if run.count > 1 else run for run in model.runs),
    )


def cluster_of(expression: str, *, memory: float = 1.0, network: float = 1.0) -> Cluster:
    """A cluster with its devices' memory and its nodes' links scaled. A name followed by a star is
    two nodes of it."""
    groups: list[NodeGroup] = []
    for term in expression.split("+"):
        for group in parse_cluster(term.rstrip("*")).groups:
            kind = group.kind
            accelerator = replace(
                kind.accelerator, memory_bytes=int(kind.accelerator.memory_bytes * memory)
            )
            nic = replace(
                kind.nic,
                bandwidth=kind.nic.bandwidth * network,
                reverse_bandwidth=kind.nic.reverse_bandwidth * network,
            )
            kind = replace(kind, accelerator=accelerator, nic=nic)
            groups.append(NodeGroup(kind=kind, count=2 if term.endswith("*") else group.count))
    return Cluster(expression=expression, groups=tuple(groups))


CLUSTERS = {
    "h100-sxm:2": (0, 0),
    "v100-sxm-32gb:3": (0, 0, 0),
    "h100-sxm:4": (0, 0, 0, 0),
    "h100-sxm:1+v100-sxm-32gb:1": (0, 1),
    "a100-sxm-80gb:1*": (0, 1),
    "a100-sxm-80gb:2*": (0, 0, 1, 1),
    "a100-sxm-80gb:2+v100-sxm-32gb:2": (0, 0, 1, 1),
    "h100-sxm:1+a100-sxm-80gb:1+v100-sxm-32gb:1": (0, 1, 2),
}
"""Clusters and the label of each of their devices."""

MODELS = ("llama-3-8b", "llama-2-70b", "llama-2-7b")
SERIAL = "megatron-core-0.12 grad_overlap=off param_overlap=off p2p_overlap=off"
"""Nothing travels beside compute."""
RUNTIMES = (
    "megatron-core",
    SERIAL,
    "torchtitan",
)


def draw_instance(number: int) -> Instance:
    """Instance `number`: 10^3 to 10^5 members; every tenth may have more shapes and stages to price
    than the others."""
    generator = Random(number)
    shapes, prices = (4000, 700) if number % 10 == 9 else (900, 200)
    least = 10_000 if number % 10 == 9 else 1000
    while True:
        expression = generator.choice(sorted(CLUSTERS))
        dims = tuple(
            sorted(
                generator.sample((Dim.BATCH, Dim.HEADS, Dim.HIDDEN), generator.choice((1, 2, 3, 3)))
            )
        )
        weights = tuple(sorted(generator.sample((1, 2, 3), generator.choice((1, 2, 3)))))
        microbatches = tuple(sorted(generator.sample((1, 2, 3), generator.choice((1, 1, 2)))))
        layers = generator.choice((1, 2))
        space = ExactSpace(
            trees=TreeSpace(dims=dims, weights=weights, depth=generator.choice((1, 2, 2))),
            microbatches=microbatches,
            max_stages=generator.choice((2, 3, 4, 4)),
        )
        job = TrainingJob(
            sequences=(SequenceLength(name="text", tokens=generator.choice((512, 2048, 4096))),),
            global_batch=6 * generator.choice((1, 2, 3)),
        )
        problem = Problem(
            model=model_of(generator.choice(MODELS), layers),
            cluster=cluster_of(
                expression,
                memory=generator.choice((0.3, 0.6, 1.0)),
                network=generator.choice((0.1, 1.0)),
            ),
            job=job,
            runtime=load_runtime(generator.choice(RUNTIMES)),
        )
        instance = Instance(
            problem=problem, labels=CLUSTERS[expression], space=space, blocks=layers + 2
        )
        members, forms, options = instance.sizes()
        if least <= members <= 100_000 and forms <= shapes and options <= prices:
            return instance
