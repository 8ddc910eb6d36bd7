"""Tasks of a plan without its order: the links of the order are taken out of its Program, so
that other orders change only a few links.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray
from shardwright.cost.step.stage_costs import StageCosts
from shardwright.lazy_dataclass import dataclass
from shardwright.program.plan_program import Program
from shardwright.program.problem import Problem
from shardwright.program.task_arrays import Stream, TaskKind
from shardwright.search.exact.static_orders import finish_times
from shardwright.simulator.kernel_tasks import plan_kernel_tasks

_ACTIONS = (int(TaskKind.F), int(TaskKind.B))
_SENDS = (int(TaskKind.SEND_F), int(TaskKind.SEND_B))
_BACK = (int(TaskKind.B), int(TaskKind.SEND_B))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeTasks:
    """Tasks of a shape without an order; its stages are numbered lane by lane.

    Args:
        links: (links, 2) that hold under every order.
        stage_of: of each class of devices.
        coupled: (classes, classes) that start together.
        first, last: (classes, 2 m) tasks of each action (forwards, then backwards; m: of the lane
            that has the most), or -1.
        send: likewise
        the task that an action's sender is held up by, or -1.
        blocking: whether it is. work, use_start, use_resource, use_weight,
        num_resources: as `simulator.kernel`.
    """

    links: IntArray
    stage_of: IntArray
    coupled: BoolArray
    first: IntArray
    last: IntArray
    send: IntArray
    blocking: bool
    work: IntArray
    use_start: Int32Array
    use_resource: Int32Array
    use_weight: Int32Array
    num_resources: int

    def finish(self, orders: IntArray, *, contended: bool) -> IntArray:
        """Picoseconds of the step (without jitter) under each order; uncontended: the longest path;
        -1: deadlock.

        Args:
            orders: (orders, stages, 2 m) actions; -1 behind those of a lane with fewer microbatches
                than m.
        """
        return finish_times(
            orders,
            self.links,
            self.stage_of,
            self.coupled,
            self.first,
            self.last,
            self.send,
            self.blocking,
            self.work,
            self.use_start,
            self.use_resource,
            self.use_weight,
            self.num_resources,
            contended,
        )


def tasks_of_shape(
    problem: Problem, program: Program, costs: StageCosts, *, blocking: bool
) -> ShapeTasks:
    """Tasks of a Program without the links of its order.

    Args:
        program: of disjoint stages, each of which runs whole forwards and backwards in some order.
        blocking: sends hold up their sender.
    """
    work, _, successor_start, successor, use_start, use_resource, use_weight, num_resources = (
        plan_kernel_tasks(problem, program, costs)
    )
    first, last, send = _places(program)
    source = np.repeat(np.arange(len(work)), np.diff(successor_start))
    links = np.stack([source, successor.astype(np.int64)], axis=1)
    own = [c.families[0] for c in program.classes]
    stage_of = np.array(
        [program.posts.first_stage[lane] + chunk for lane, chunk, _ in own], dtype=np.int64
    )
    same = stage_of[:, None] == stage_of[None, :]
    joined = [[family in costs.coupled[one] for *_, family in own] for one in own]
    return ShapeTasks(
        links=links[~_of_order(program, links, last)],
        stage_of=stage_of,
        coupled=same & np.array(joined, dtype=np.bool_),
        first=first,
        last=last,
        send=send,
        blocking=blocking,
        work=work,
        use_start=use_start,
        use_resource=use_resource,
        use_weight=use_weight,
        num_resources=num_resources,
    )


def _places(program: Program) -> tuple[IntArray, IntArray, IntArray]:
    """(classes, 2 m) first and last task of each action, and the send that it ends in or -1."""
    instances, templates = program.instances, program.templates
    own = np.array([lane.microbatches or 0 for lane in program.plan.lanes], dtype=np.int64)
    kind, klass, lane = (
        column[instances.template] for column in (templates.kind, templates.klass, templates.lane)
    )
    column = instances.microbatch + np.where(np.isin(kind, _BACK), own[lane], 0)
    tasks = np.arange(len(kind))
    first = np.full((len(program.classes), 2 * int(own.max())), len(kind), dtype=np.int64)
    last, send = np.full_like(first, -1), np.full_like(first, -1)
    acts, sends = np.isin(kind, _ACTIONS), np.isin(kind, _SENDS)
    np.minimum.at(first, (klass[acts], column[acts]), tasks[acts])
    np.maximum.at(last, (klass[acts], column[acts]), tasks[acts])
    np.maximum.at(send, (klass[sends], column[sends]), tasks[sends])
    return np.where(last < 0, -1, first), last, send


def _of_order(program: Program, links: IntArray, last: IntArray) -> BoolArray:
    """(links,) True for links of a row of the order: from a stage's action, or its send, to
    another action of the stage.
    """
    instances, templates = program.instances, program.templates
    kind, lane, chunk = (
        column[instances.template] for column in (templates.kind, templates.lane, templates.chunk)
    )
    acts = (instances.stream == int(Stream.COMPUTE)) & (kind <= int(TaskKind.R))
    sends = np.isin(kind, _SENDS)
    source, target = links[:, 0], links[:, 1]
    ends = np.zeros(len(acts), dtype=np.bool_)
    ends[last[last >= 0]] = True
    same = (lane[source] == lane[target]) & (chunk[source] == chunk[target])
    found: BoolArray = acts[target] & same & ((acts[source] & ends[source]) | sends[source])
    return found
