"""Plans of several lanes by brute force: every member listed by other code than the search's, and
each simulated as any plan is.

The declared space in other words. A member gives every device a lane or none, and within it a
stage; each lane a number of microbatches, all of one size, that add up to the batch; each stage a
tree, and an order in which forwards come by number, backwards too, and none of them before its
forward. Members that look the same when devices show only their labels and lanes have no numbers
are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from random import Random

from shardwright.errors import StrategyError
from shardwright.hardware.cluster import NodeGroup
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.exact.enumerate_lane_distributions import num_members
from shardwright.search.exact.enumerate_tensor_split_trees import TreeSpace
from shardwright.search.exact.exact_space import ExactSpace
from shardwright.search.exact.stage_of_block_range import stage_of_blocks
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import Action, Kind, Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Stage
from tests.search.exact.brute_exact import RUNTIMES, Devices, Trees, all_trees, model_of, orders_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMember:
    """One lane of a member: its stages, the order of each of them, and how it looks."""

    stages: tuple[Stage, ...]
    orders: tuple[tuple[int, ...], ...]
    microbatches: int
    look: str


@dataclass(slots=True)
class Steps:
    """What brute force finds: the least seconds (None: nothing fits), members, how many are
    illegal, too large, and the best's lanes."""

    best: float | None = None
    members: int = 0
    illegal: int = 0
    too_large: int = 0
    lanes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesInstance:
    """A problem, the label of each device, and the space; without `orders` a stage runs all
    forwards before its backwards."""

    problem: Problem
    labels: tuple[int, ...]
    space: ExactSpace
    blocks: int
    orders: bool = True


def looks(trees: Trees, devices: Devices) -> list[tuple[object, str]]:
    """Every tree of a stage on all of these devices, with how it looks; of those that look the same
    one."""
    every = trees._all(devices, trees.space.depth)
    return [
        (drawn.split, look)
        for look, drawn in {repr(d.look): d for d in every if trees._rises(d.leaves)}.items()
    ]


def lane_members(instance: LanesInstance, devices: Devices, microbatches: int) -> list[LaneMember]:
    """Every lane that works on all of these devices, once however its devices of one label are
    exchanged."""
    space, labels, found = instance.space, instance.labels, {}
    trees = all_trees(labels, space.trees)
    own = orders_of(microbatches) if instance.orders else [tuple(range(2 * microbatches))]
    for count in range(1, min(space.max_stages, instance.blocks, len(devices)) + 1):
        for inner in combinations(range(1, instance.blocks), count - 1):
            ends = (*inner, instance.blocks)
            for owner in product(range(count), repeat=len(devices)):
                sets = [
                    tuple(d for d, s in zip(devices, owner, strict=True) if s == stage)
                    for stage in range(count)
                ]
                if not all(sets):
                    continue
                each = [
                    [
                        (
                            stage_of_blocks(
                                instance.problem,
                                first=first,
                                end=end,
                                tree=split,
                                first_device=min(some),
                            ),
                            look,
                        )  # type: ignore[arg-type]
                        for split, look in looks(trees, some)
                    ]
                    for first, end, some in zip((0, *inner), ends, sets, strict=True)
                ]
                for chosen in product(*each):
                    for orders in product(own, repeat=count):
                        look = repr((microbatches, ends, [look for _, look in chosen], orders))
                        if look not in found:
                            stages = tuple(stage for stage, _ in chosen)
                            found[look] = LaneMember(
                                stages=stages, orders=orders, microbatches=microbatches, look=look
                            )
    return list(found.values())


def every_member(instance: LanesInstance) -> Iterator[tuple[LaneMember, ...]]:
    """Every member once."""
    problem, space = instance.problem, instance.space
    members = lru_cache(maxsize=None)(lambda devices, m: lane_members(instance, devices, m))
    seen = set()
    for owner in product(range(space.lanes + 1), repeat=problem.cluster.num_devices):
        lanes = max(owner)
        sets = [
            tuple(d for d, lane in enumerate(owner) if lane == number)
            for number in range(1, lanes + 1)
        ]
        # Lanes by their lowest devices: others are the same under other numbers.
        if not lanes or not all(sets) or sets != sorted(sets):
            continue
        for numbers in product(space.microbatches, repeat=lanes):
            if problem.job.global_batch % sum(numbers):
                continue
            for chosen in product(
                *(members(devices, m) for devices, m in zip(sets, numbers, strict=True))
            ):
                look = tuple(sorted(lane.look for lane in chosen))
                if look not in seen:
                    seen.add(look)
                    yield chosen


def written(problem: Problem, chosen: tuple[LaneMember, ...]) -> Plan:
    """A member as a plan."""
    each = problem.job.global_batch // sum(lane.microbatches for lane in chosen)
    lanes, tables = [], []
    for number, one in enumerate(chosen):
        m = one.microbatches
        name = f"way{number}"
        lanes.append(Lane(name=name, samples=each * m, microbatches=m, stages=one.stages))
        rows = {
            stage.base: tuple(
                Action(chunk=chunk, kind=Kind.F if a < m else Kind.B, microbatch=a % m)
                for a in order
            )
            for chunk, (stage, order) in enumerate(zip(one.stages, one.orders, strict=True))
        }
        tables.append(Table(lanes=(name,), rows=tuple(sorted(rows.items()))))
    return Plan(devices=problem.cluster.num_devices, lanes=tuple(lanes), orders=tuple(tables))


def simulate_all(instance: LanesInstance) -> Steps:
    """Simulate every member."""
    found = Steps()
    for chosen in every_member(instance):
        found.members += 1
        try:
            done = simulate_plan(instance.problem, written(instance.problem, chosen))
        except StrategyError:
            found.illegal += 1
            continue
        if not done.fits:
            found.too_large += 1
        elif found.best is None or done.step_time_s < found.best:
            found.best, found.lanes = done.step_time_s, len(chosen)
    return found


NODES = ("h100-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "v100-sxm-32gb", "l40s")


def draw_lanes(number: int, *, most: int = 1000, least: int = 100) -> LanesInstance:
    """Instance `number`: up to 6 devices of up to 3 kinds in one or two zones, of `least` to `most`
    members."""
    generator = Random(number)
    while True:
        kinds = generator.sample(NODES, generator.choice((1, 2, 2, 3, 3)))
        counts = [generator.choice((1, 2, 2, 3, 4)) for _ in kinds]
        if not 2 <= sum(counts) <= 6:
            continue
        zones = (
            [generator.choice("ab") for _ in kinds]
            if generator.random() < 0.8
            else ["a"] * len(kinds)
        )
        link = (
            f",a~b={generator.choice((10, 200, 400))}gbps/{generator.choice((0.01, 0.1, 5))}ms"
            if len(set(zones)) == 2
            else ""
        )
        expression = (
            "+".join(
                f"{kind}:{count}@{zone}"
                for kind, count, zone in zip(kinds, counts, zones, strict=True)
            )
            + link
        )
        cluster = parse_cluster(expression)
        share = generator.choice((0.3, 1.0, 1.0, 1.0))
        cluster = replace(cluster, groups=tuple(_smaller(group, share) for group in cluster.groups))
        dims = tuple(
            generator.sample((Dim.BATCH, Dim.WIDTH, Dim.HEADS), generator.choice((0, 0, 1, 2)))
        )
        trees = TreeSpace(
            dims=dims, weights=generator.choice(((1,), (2,), (1, 2))), depth=1 if dims else 0
        )
        numbers = generator.choice(((1,), (2,), (1, 2), (1, 3), (1, 2, 3)))
        space = ExactSpace(
            trees=trees,
            microbatches=numbers,
            max_stages=generator.choice((1, 2, 3)),
            lanes=generator.choice((2, 3, 3)),
        )
        layers = generator.choice((1, 1, 2, 3))
        problem = Problem(
            model=model_of(generator.choice(("llama-3-8b", "llama-2-7b")), layers),
            cluster=cluster,
            job=TrainingJob(
                sequences=(
                    SequenceLength(name="text", tokens=generator.choice((512, 2048, 4096))),
                ),
                global_batch=generator.choice((4, 6, 8, 12, 24)),
            ),
            runtime=load_runtime(generator.choice(RUNTIMES)),
        )
        if least <= num_members(problem, space, blocks=layers + 2) <= most:
            labels = tuple(
                n for n, group in enumerate(cluster.groups) for _ in range(group.kind.num_devices)
            )
            return LanesInstance(problem=problem, labels=labels, space=space, blocks=layers + 2)


def _smaller(group: NodeGroup, share: float) -> NodeGroup:
    """The nodes with a share of their devices' memory."""
    accelerator = group.kind.accelerator
    less = replace(accelerator, memory_bytes=int(accelerator.memory_bytes * share))
    return replace(group, kind=replace(group.kind, accelerator=less))
