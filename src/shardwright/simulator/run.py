"""Tier S: price a Program's templates, put its tasks on streams and shared links, and run the kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwright.cost.critical_path import durations, picoseconds
from shardwright.cost.member import StepCosts
from shardwright.hardware.cluster import Tier
from shardwright.program.fold import RankClasses
from shardwright.program.instances import TaskKind, Template
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


def template_work(template: Template, costs: StepCosts, lengths: Int64, border: Int64, classes: RankClasses) -> int:
    """Uncontended picoseconds of one template."""
    c, kind = template.chunk, template.kind
    if kind <= TaskKind.R:
        return _piece(int(lengths[int(kind), c]), template)
    if kind is TaskKind.SEND_F:
        return int(border[classes.following_tier[template.klass]])
    if kind is TaskKind.SEND_B:
        return int(border[classes.preceding_tier[template.klass]])
    if kind is TaskKind.GATHER:
        return int(picoseconds(costs.gather_s[c]))
    if kind is TaskKind.REDUCE:
        return _piece(int(picoseconds(costs.reduce_s[c])), template)
    rank = int(classes.stage[template.klass])
    return int(picoseconds(costs.optimizer_s[rank] + costs.after_s[rank]))


def _piece(whole: int, template: Template) -> int:
    return whole * (template.piece + 1) // template.pieces - whole * template.piece // template.pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uses:
    """Resources by number, and what each template takes of them: (resource, weight) pairs."""

    num_resources: int
    by_template: list[list[tuple[int, int]]]


def _uses(program: Program, links: Links) -> _Uses:
    """Resources: each class's multiprocessors (slowdown), its own link out and in on every tier, and the pooled uplinks above the leaf."""
    classes, tiers = program.classes, len(links.tiers)
    count = len(classes)
    extra = max(round((links.slowdown - 1.0) * SCALE), 0)
    device, out, into = 0, count, count + count * tiers
    pool_out = count + 2 * count * tiers
    pool_in = pool_out + count * tiers
    by_template = []
    for t in program.templates:
        uses: list[tuple[int, int]] = []
        if t.kind <= TaskKind.R and extra:
            uses.append((device + t.klass, SCALE))
        elif t.kind in (TaskKind.SEND_F, TaskKind.SEND_B):
            onward = t.kind is TaskKind.SEND_F
            tier = int((classes.following_tier if onward else classes.preceding_tier)[t.klass])
            other = int((classes.following if onward else classes.preceding)[t.klass])
            uses += [(out + t.klass * tiers + tier, SCALE), (into + other * tiers + tier, SCALE)]
            uses += _pool(classes, t.klass, pool_out, tier, tiers, SCALE) + _pool(classes, other, pool_in, tier, tiers, SCALE)
        elif t.kind in (TaskKind.GATHER, TaskKind.REDUCE):
            if extra:
                uses.append((device + t.klass, extra))
            for tier, share in enumerate(links.sync_share):
                weight = min(round(share * SCALE), SCALE)
                if weight:
                    uses += [(out + t.klass * tiers + tier, weight), (into + t.klass * tiers + tier, weight)]
                    uses += _pool(classes, t.klass, pool_out, tier, tiers, weight) + _pool(classes, t.klass, pool_in, tier, tiers, weight)
        by_template.append(uses)
    return _Uses(num_resources=pool_in + count * tiers, by_template=by_template)


def _pool(classes: RankClasses, klass: int, base: int, tier: int, tiers: int, weight: int) -> list[tuple[int, int]]:
    """The uplink of the unit of every tier between the island and `tier`, loaded by all ranks of the class in that unit."""
    result = []
    for below in range(1, tier):
        ranks, devices = (int(x) for x in classes.load[below, klass])
        unit = int(classes.unit[below, klass])
        result.append((base + unit * tiers + below, -(-weight * ranks // devices)))
    return result


def run(program: Program, *, costs: StepCosts, links: Links) -> Timeline:
    """Simulate `program`: durations from `costs`, shared links and multiprocessors from `links`."""
    lengths, border = durations(costs), picoseconds(costs.border_s)
    works = np.array([template_work(t, costs, lengths, border, program.classes) for t in program.templates], dtype=np.int64)
    uses = _uses(program, links)
    template = program.instances.template
    counts = np.array([len(u) for u in uses.by_template], dtype=np.int64)
    first = np.concatenate([[0], np.cumsum(counts)])
    pairs = np.array([p for u in uses.by_template for p in u], dtype=np.int64).reshape(-1, 2)
    per_task = counts[template]
    use_start = np.concatenate([[0], np.cumsum(per_task)]).astype(np.int32)
    within = np.arange(int(use_start[-1])) - np.repeat(use_start[:-1], per_task)
    taken = pairs[np.repeat(first[:-1][template], per_task) + within]
    work = works[template]
    start, finish, finished = simulate(
        work,
        program.instances.indegree,
        program.instances.successor_start,
        program.instances.successor,
        use_start,
        taken[:, 0].astype(np.int32),
        taken[:, 1].astype(np.int32),
        uses.num_resources,
    )
    assert finished == len(work), "a lowered Program does not deadlock"
    return Timeline(start=start, finish=finish, work=work)
