"""Tasks of a plan without the dependencies of its order, so that an order adds only a few links."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray
from shardwright.cost.step.stage_action_seconds import StageCosts
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.lowered_program import Program
from shardwright.program.task_kind_stream_and_dependency_arrays import Stream, TaskKind
from shardwright.program.training_problem import Problem
from shardwright.search.exact.enumerate_forward_backward_orders import finish_times
from shardwright.simulator.event_simulation_inputs import plan_kernel_tasks

_ACTIONS = (int(TaskKind.F), int(TaskKind.B))
_SENDS = (int(TaskKind.SEND_F), int(TaskKind.SEND_B))
_BACK = (int(TaskKind.B), int(TaskKind.SEND_B))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeTasks:
    """Tasks of a shape without an order; its stages are numbered lane by lane.

    Args:
        links: (links, 2) dependencies that hold under every order.
        stage_of: stage of each class of devices.
        coupled: (classes, classes) True for classes that start an action together.
        first, last: (classes, 2 m) tasks of each action (forwards, then backwards; m of the lane
            with the most), or -1.
        send: (classes, 2 m) send that blocks the sender of each action, or -1.
        blocking: True if sends block their sender.
        work, use_start, use_resource, use_weight, num_resources: arguments of `simulator.kernel`.
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
        """Step picoseconds without jitter by order; -1 = deadlock; uncontended = longest path.

        A deadlocked order has -1.

        Args:
            orders: (orders, stages, 2 m) actions; -1 after the actions of a lane with fewer
                microbatches than m.
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
    """Tasks of a lowered program without the links of its order.

    Args:
        program: program of disjoint stages, each of which runs whole forwards and backwards in some
            order.
        blocking: True if sends block their sender.
    """
    work, _, successor_start, successor, use_start, use_resource, use_weight, num_resources = (
        plan_kernel_tasks(problem, program, costs)
    )
    first, last, send = _action_tasks(program)
    source = np.repeat(np.arange(len(work)), np.diff(successor_start))
    links = np.stack([source, successor.astype(np.int64)], axis=1)
    families = [c.families[0] for c in program.classes]
    stage_of = np.array(
        [program.posts.first_stage[lane] + chunk for lane, chunk, _ in families], dtype=np.int64
    )
    same_stage = stage_of[:, None] == stage_of[None, :]
    are_coupled = [
        [family in costs.coupled[class_families] for *_, family in families]
        for class_families in families
    ]
    return ShapeTasks(
        links=links[~_is_order_link(program, links, last)],
        stage_of=stage_of,
        coupled=same_stage & np.array(are_coupled, dtype=np.bool_),
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


def _action_tasks(program: Program) -> tuple[IntArray, IntArray, IntArray]:
    """(classes, 2 m) first task, last task and final send of each action; -1 = none."""
    instances, templates = program.instances, program.templates
    num_microbatches = np.array(
        [lane.microbatches or 0 for lane in program.plan.lanes], dtype=np.int64
    )
    kind, klass, lane = (
        column[instances.template] for column in (templates.kind, templates.klass, templates.lane)
    )
    column = instances.microbatch + np.where(np.isin(kind, _BACK), num_microbatches[lane], 0)
    tasks = np.arange(len(kind))
    first = np.full(
        (len(program.classes), 2 * int(num_microbatches.max())), len(kind), dtype=np.int64
    )
    last, send = np.full_like(first, -1), np.full_like(first, -1)
    is_action, is_send = np.isin(kind, _ACTIONS), np.isin(kind, _SENDS)
    np.minimum.at(first, (klass[is_action], column[is_action]), tasks[is_action])
    np.maximum.at(last, (klass[is_action], column[is_action]), tasks[is_action])
    np.maximum.at(send, (klass[is_send], column[is_send]), tasks[is_send])
    return np.where(last < 0, -1, first), last, send


def _is_order_link(program: Program, links: IntArray, last: IntArray) -> BoolArray:
    """(links,) True for links between consecutive actions of a stage, which the order made.

    Such a link goes from a stage's action, or its send, to another action of the stage.
    """
    instances, templates = program.instances, program.templates
    kind, lane, chunk = (
        column[instances.template] for column in (templates.kind, templates.lane, templates.chunk)
    )
    is_action = (instances.stream == int(Stream.COMPUTE)) & (kind <= int(TaskKind.R))
    is_send = np.isin(kind, _SENDS)
    source, target = links[:, 0], links[:, 1]
    is_last = np.zeros(len(is_action), dtype=np.bool_)
    is_last[last[last >= 0]] = True
    same_stage = (lane[source] == lane[target]) & (chunk[source] == chunk[target])
    is_order_link: BoolArray = (
        is_action[target] & same_stage & ((is_action[source] & is_last[source]) | is_send[source])
    )
    return is_order_link
