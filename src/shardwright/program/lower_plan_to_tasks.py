"""Lower a plan to tasks on streams: actions, sends, gathers, reductions and updates.

Actions of every device class on its streams, sends along stage edges.

All tasks are arrays over *posts*: a post is a class of devices in one of its stages, and (post,
microbatch, slice) names an action of a kind. One pass lays the rows of all classes, and one each
links chunks, slices, sends and gradients; no loop runs over tasks.

Two actions of a pair that run overlapped are laid one after the other, start when both can, and
name each other: `cost.step.overlapped_action_pair_seconds` prices the communication that one hides
behind the other.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Int32Array, IntArray
from shardwright.program.actions_as_compute_stream_tasks import ActionTasks, actions_as_tasks
from shardwright.program.device_classes_with_equal_actions import (
    DeviceClass,
    Posts,
    TaskShape,
    class_numbers,
    posts_of,
)
from shardwright.program.lowered_program import Program, receiving_classes
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.stages.stage_messages import LaneEdge
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.synchronisation_tasks import add_gathers_and_reductions
from shardwright.program.task_graph_builder import TaskGraphBuilder, templates_and_instances
from shardwright.program.task_kind_stream_and_dependency_arrays import Stream, TaskKind
from shardwright.strategy.plan.plan import Plan

_F, _I, _W, _B, _R = (int(k) for k in (TaskKind.F, TaskKind.I, TaskKind.W, TaskKind.B, TaskKind.R))


def lower_plan(
    plan: Plan,
    *,
    stages: tuple[tuple[StageParts, ...], ...],
    rows: ActionRows,
    classes: tuple[DeviceClass, ...],
    edges: tuple[LaneEdge, ...],
    shape: TaskShape,
) -> Program:
    """Lower `plan` to a Program: templates and instances of all its tasks.

    Args:
        stages, rows, classes, edges: see PlanProgram.
        shape: what the tasks depend on beside them.
    """
    posts = posts_of(stages, classes)
    laid = actions_as_tasks(rows, classes, posts, shape)
    links = TaskGraphBuilder(laid.count, laid.columns)
    laid.link_row(links)
    _link_chunks(laid, links)
    _link_slices(laid, links)
    _start_together(laid, classes, posts, shape, links)
    _add_sends(laid, posts, edges, class_numbers(classes), shape, links)
    add_gathers_and_reductions(laid, classes, posts, stages, shape, links)
    templates, instances = templates_and_instances(links, meets=laid.meets)
    return Program(
        plan=plan,
        stages=stages,
        rows=rows,
        classes=classes,
        edges=edges,
        posts=posts,
        templates=templates,
        instances=instances,
    )


def _link_chunks(laid: ActionTasks, links: TaskGraphBuilder) -> None:
    """Add edges from forward and recompute to the input gradient, and on to the weight gradient.

    Of each chunk.
    """
    first, last = laid.first, laid.last
    links.add(last[_I], first[_W])
    links.add(last[_F], first[_R])
    for kind in (_B, _I):
        links.add(last[_F], first[kind])
        links.add(last[_R], first[kind])


def _link_slices(laid: ActionTasks, links: TaskGraphBuilder) -> None:
    """Add edges between a microbatch's slices: forward in order, backward in reverse.

    A backward follows the next slice, whose queries attend to its keys.
    """
    first, last = laid.first, laid.last
    links.add(last[_F][:, :, :-1], first[_F][:, :, 1:])
    for kind in (_B, _I):
        links.add(last[kind][:, :, 1:], first[kind][:, :, :-1])


def _start_together(
    laid: ActionTasks,
    classes: tuple[DeviceClass, ...],
    posts: Posts,
    shape: TaskShape,
    links: TaskGraphBuilder,
) -> None:
    """Make coupled classes' actions start together, and the actions of overlapped pairs.

    Classes that meet in blocking collectives of a stage.
    """
    family_posts: dict[tuple[int, int, int], list[int]] = {}
    for post, key in enumerate(
        zip(posts.lane.tolist(), posts.chunk.tolist(), posts.family.tolist(), strict=True)
    ):
        family_posts.setdefault(key, []).append(post)
    peer_posts, waiting_posts = [], []
    for (lane, chunk, family), posts_of_family in family_posts.items():
        coupled_families = {*shape.coupled.get((lane, chunk, family), ()), family}
        peers = [p for f in coupled_families for p in family_posts.get((lane, chunk, f), ())]
        if len(peers) > 1:
            for post in posts_of_family:
                for peer in peers:
                    if peer != post:
                        peer_posts.append(peer)
                        waiting_posts.append(post)
    before, task = laid.first[:, peer_posts].reshape(-1), laid.first[:, waiting_posts].reshape(-1)
    exist = (before >= 0) & (task >= 0)
    links.start_together(laid.pairs)
    links.start_together(np.stack([before[exist], task[exist], task[exist]], axis=1))


def _add_sends(
    laid: ActionTasks,
    posts: Posts,
    edges: tuple[LaneEdge, ...],
    class_of: Int32Array,
    shape: TaskShape,
    links: TaskGraphBuilder,
) -> None:
    """Add one send for each action whose tensor crosses a stage edge, with its dependencies.

    On the sender's stream; a receiver and its coupled classes wait for every tensor that they
    receive.
    """
    back_first, back_last = laid.backward(laid.first), laid.backward(laid.last)
    for kind, stream, forward in (
        (TaskKind.SEND_F, Stream.SEND_F, True),
        (TaskKind.SEND_B, Stream.SEND_B, False),
    ):
        source, number, sent, received, local = _sender_columns(
            posts, edges, class_of, forward=forward
        )
        done = laid.last[_F] if forward else back_last
        begin = laid.first[_F] if forward else back_first
        links.add(done[local[:, 0]], begin[local[:, 1]])
        if not len(source):
            continue
        ready = done[source]
        tasks = np.full(ready.shape, -1, dtype=np.int32)
        record, microbatch, part = np.nonzero(ready >= 0)
        # On a stream tasks stand in the order in which what they send is ready, then edge by edge:
        # the actions of a class have consecutive numbers.
        order = np.lexsort((number[record], ready[record, microbatch, part]))
        record, microbatch, part = record[order], microbatch[order], part[order]
        after: Int32Array = ready[record, microbatch, part]
        klass, lane, chunk, edge = (
            column.astype(np.int32)[record]
            for column in (posts.klass[source], posts.lane[source], posts.chunk[source], number)
        )
        send_tasks = links.tasks(
            len(record),
            kind=int(kind),
            klass=klass,
            lane=lane,
            chunk=chunk,
            slice=part.astype(np.int32),
            edge=edge,
            stream=int(stream),
            microbatch=microbatch.astype(np.int32),
        )
        tasks[record, microbatch, part] = send_tasks
        links.add(after, send_tasks)
        same_class = np.flatnonzero(klass[1:] == klass[:-1])
        links.add(send_tasks[same_class], send_tasks[same_class + 1])
        links.add(tasks[sent], begin[received])
        if shape.blocking:
            following = laid.following[_F] if forward else laid.backward(laid.following)
            links.add(tasks, following[source])


def _sender_columns(
    posts: Posts, edges: tuple[LaneEdge, ...], class_of: Int32Array, *, forward: bool
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Columns of senders (post, edge), deliveries (sender, receiving post) and local post pairs.

    Returns: (senders,) post and edge of each sender; (deliveries,) index of the sender and post of
    the receiver; (n, 2) posts of the two stages of an edge of one class, which needs no send.
    """
    source: list[int] = []
    edge_of_sender: list[int] = []
    sent: list[int] = []
    received: list[int] = []
    local: list[tuple[int, int]] = []
    for index, lane_edge in enumerate(edges):
        sending_stage, receiving_stage = (
            (lane_edge.edge.source, lane_edge.edge.target)
            if forward
            else (lane_edge.edge.target, lane_edge.edge.source)
        )
        messages = lane_edge.forward if forward else lane_edge.backward
        senders, receivers = (
            posts.of_stage[lane_edge.lane, sending_stage],
            posts.of_stage[lane_edge.lane, receiving_stage],
        )
        # Between stages of one class each there is nobody else.
        single_classes = len(senders) == len(receivers) == 1 and len(messages.sends) > 0
        receivers_of = (
            dict.fromkeys(senders, tuple(receivers))
            if single_classes
            else receiving_classes(messages, class_of)
        )
        for klass, post in senders.items():
            if klass in receivers:
                local.append((post, receivers[klass]))
            if klass in receivers_of:
                receiving_posts = [receivers[k] for k in receivers_of[klass] if k in receivers]
                sent += [len(source)] * len(receiving_posts)
                received += receiving_posts
                source.append(post)
                edge_of_sender.append(index)
    columns = (
        np.array(column, dtype=np.int64) for column in (source, edge_of_sender, sent, received)
    )
    return (*columns, np.array(local, dtype=np.int64).reshape(-1, 2))  # type: ignore[return-value]
