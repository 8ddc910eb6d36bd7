"""Tier S: price a Program's templates, put its tasks on streams and shared links, and run the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwright.cost.critical_path import durations, picoseconds
from shardwright.cost.member import StepCosts
from shardwright.hardware.cluster import Tier
from shardwright.program.fold import RankClasses
from shardwright.program.instances import TaskKind
from shardwright.program.program import Program
from shardwright.simulator.kernel import SCALE, simulate
from shardwright.units import PICOSECONDS_PER_SECOND

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When every instance ran, in picoseconds, and what it takes uncontended."""

    start: Int64
    finish: Int64
    work: Int64

    @property
    def seconds(self) -> float:
        """End of the last task."""
        return int(self.finish.max()) / PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What tasks share.

    Args:
        tiers: of the cluster. slowdown: of kernels beside a collective. sync_tier: tier of each gradient group's slowest hop.
        sync_share: (tiers,) share of a device's link that its gradient collective fills while it runs.
    """

    tiers: tuple[Tier, ...]
    slowdown: float
    sync_share: tuple[float, ...]


def template_work(program: Program, costs: StepCosts) -> Int64:
    """(templates,) uncontended picoseconds."""
    classes, columns = program.classes, program.columns
    border = picoseconds(costs.border_s)
    chunk, klass = np.maximum(columns.chunk, 0), columns.klass
    lengths = np.zeros((len(TaskKind), len(columns.kind)), dtype=np.int64)
    lengths[: int(TaskKind.R) + 1] = durations(costs)[:, chunk]
    lengths[TaskKind.SEND_F] = border[classes.following_tier[klass]]
    lengths[TaskKind.SEND_B] = border[classes.preceding_tier[klass]]
    lengths[TaskKind.GATHER] = picoseconds(costs.gather_s)[chunk]
    lengths[TaskKind.REDUCE] = picoseconds(costs.reduce_s)[chunk]
    lengths[TaskKind.STEP] = picoseconds(costs.optimizer_s + costs.after_s)[classes.stage[klass]]
    whole = lengths[columns.kind, np.arange(len(columns.kind))]
    return whole * (columns.piece + 1) // columns.pieces - whole * columns.piece // columns.pieces


_ACTION, _SEND_F, _SEND_B, _SYNC, _NOTHING = range(5)
_GROUP = np.array([_ACTION] * 5 + [_SEND_F, _SEND_B, _SYNC, _SYNC, _NOTHING])
"""What a kind of task takes of shared resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uses:
    """Resources by number, and what each (group of kinds, class) takes of them: CSR of (resource, weight)."""

    num_resources: int
    start: Int64
    pairs: Int64


def _uses(classes: RankClasses, links: Links) -> _Uses:
    """Resources: each class's multiprocessors (slowdown), its own link out and in on every tier, and the pooled uplinks above the leaf."""
    tiers, count = len(links.tiers), len(classes)
    extra = max(round((links.slowdown - 1.0) * SCALE), 0)
    device, out, into = 0, count, count + count * tiers
    pool_out = count + 2 * count * tiers
    pool_in = pool_out + count * tiers
    rows: list[list[tuple[int, int]]] = []
    for group in range(_NOTHING + 1):
        for klass in range(count):
            uses: list[tuple[int, int]] = []
            if group == _ACTION and extra:
                uses.append((device + klass, SCALE))
            elif group in (_SEND_F, _SEND_B):
                tier = int((classes.following_tier if group == _SEND_F else classes.preceding_tier)[klass])
                other = int((classes.following if group == _SEND_F else classes.preceding)[klass])
                uses += [(out + klass * tiers + tier, SCALE), (into + other * tiers + tier, SCALE)]
                uses += _pool(classes, klass, pool_out, tier, tiers, SCALE) + _pool(classes, other, pool_in, tier, tiers, SCALE)
            elif group == _SYNC:
                if extra:
                    uses.append((device + klass, extra))
                for tier, share in enumerate(links.sync_share):
                    weight = min(round(share * SCALE), SCALE)
                    if weight:
                        uses += [(out + klass * tiers + tier, weight), (into + klass * tiers + tier, weight)]
                        uses += _pool(classes, klass, pool_out, tier, tiers, weight) + _pool(classes, klass, pool_in, tier, tiers, weight)
            rows.append(uses)
    start = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    pairs = np.array([pair for row in rows for pair in row], dtype=np.int64).reshape(-1, 2)
    return _Uses(num_resources=pool_in + count * tiers, start=start, pairs=pairs)


def _pool(classes: RankClasses, klass: int, base: int, tier: int, tiers: int, weight: int) -> list[tuple[int, int]]:
    """The uplink of the unit of every tier between the island and `tier`, loaded by all ranks of the class in that unit."""
    result = []
    for below in range(1, tier):
        ranks, devices = (int(x) for x in classes.load[below, klass])
        unit = int(classes.unit[below, klass])
        # Rounded for one rank before it is counted, so that a class loads an uplink exactly as its ranks do.
        result.append((base + unit * tiers + below, -(-weight // devices) * ranks))
    return result


class _Key:
    """What a timeline depends on, by content: strategies that differ only in what the network does not see share one."""

    __slots__ = ("content", "costs", "links", "program")

    def __init__(self, program: Program, costs: StepCosts, links: Links) -> None:
        self.program, self.costs, self.links = program, costs, links
        classes = program.classes
        arrays = (
            template_work(program, costs),
            classes.stage,
            classes.following,
            classes.preceding,
            classes.following_tier,
            classes.preceding_tier,
            classes.unit,
            classes.load,
        )
        self.content = (program.shape, classes.peers, classes.holders, links, *(a.tobytes() for a in arrays))

    def __hash__(self) -> int:
        return hash(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.content == other.content


def run(program: Program, *, costs: StepCosts, links: Links) -> Timeline:
    """Simulate `program`: durations from `costs`, shared links and multiprocessors from `links`."""
    return _run(_Key(program, costs, links))


def kernel_tasks(program: Program, *, costs: StepCosts, links: Links) -> tuple[Int64, Int32, Int32, Int32, Int32, Int32, Int32, int]:
    """The Program as the kernel's arguments: work, dependencies, and what each task takes of the shared resources."""
    uses = _uses(program.classes, links)
    template, columns = program.instances.template, program.columns
    group = np.where((columns.kind[template] <= TaskKind.R) & ~program.instances.beside_sync, _NOTHING, _GROUP[columns.kind[template]])
    row = group * len(program.classes) + columns.klass[template]
    per_task = uses.start[row + 1] - uses.start[row]
    use_start = np.concatenate([[0], np.cumsum(per_task)])
    within = np.arange(int(use_start[-1])) - np.repeat(use_start[:-1], per_task)
    taken = uses.pairs[np.repeat(uses.start[row], per_task) + within]
    return (
        template_work(program, costs)[template],
        program.instances.indegree,
        program.instances.successor_start,
        program.instances.successor,
        use_start.astype(np.int32),
        taken[:, 0].astype(np.int32),
        taken[:, 1].astype(np.int32),
        uses.num_resources,
    )


@lru_cache(maxsize=16)
def _run(key: _Key) -> Timeline:
    tasks = kernel_tasks(key.program, costs=key.costs, links=key.links)
    start, finish, finished = simulate(*tasks)
    assert finished == len(start), "a lowered Program does not deadlock"
    return Timeline(start=start, finish=finish, work=tasks[0])
