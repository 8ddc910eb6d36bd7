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

from dataclasses import field
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from shardwright.arrays import Int32Array
from shardwright.lazily_compiled_dataclass import dataclass
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
from shardwright.program.task_kind_stream_and_dependency_arrays import (
    Instances,
    Stream,
    TaskKind,
    Templates,
)
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
    posts, class_of = posts_of(stages, classes), class_numbers(classes)
    templates, instances = _tasks_of(
        _Lowering(
            digest=_digest(rows, posts),
            rows_of_classes=tuple([device_class.row for device_class in classes]),
            blocks=tuple(
                [
                    (stage.lane, stage.chunk, segment.run, segment.first, segment.count)
                    for lane in stages
                    for stage in lane
                    for segment in stage.segments
                ]
            ),
            senders=tuple(
                [_senders(posts, edges, class_of, forward=forward) for forward in (True, False)]
            ),
            shape=shape,
            stages=stages,
            rows=rows,
            classes=classes,
            posts=posts,
        )
    )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lowering:
    """Inputs of the task graph: equal for plans with equal tasks, whatever devices run them.

    Plans that differ in the order of the mesh axes, or in what they keep for the backward, have
    equal tasks.

    Args:
        digest: of the action rows and posts.
        rows_of_classes: row of each class of devices.
        blocks: lane, chunk, run, first block and number of blocks of each segment.
        senders: of the forward and of the backward messages.
    """

    digest: bytes
    rows_of_classes: tuple[int, ...]
    blocks: tuple[tuple[int, int, int, int, int], ...]
    senders: tuple[_Senders, ...]
    shape: TaskShape
    stages: tuple[tuple[StageParts, ...], ...] = field(compare=False)
    rows: ActionRows = field(compare=False)
    classes: tuple[DeviceClass, ...] = field(compare=False)
    posts: Posts = field(compare=False)


class _Senders(NamedTuple):
    """Columns of senders (post, edge), deliveries (sender, receiving post) and local post pairs.

    Args:
        post, edge: of each sender.
        sent, received: index of the sender and post of the receiver of each delivery.
        local: posts of the two stages of an edge of one class, which needs no send.
    """

    post: tuple[int, ...]
    edge: tuple[int, ...]
    sent: tuple[int, ...]
    received: tuple[int, ...]
    local: tuple[tuple[int, int], ...]


def _digest(rows: ActionRows, posts: Posts) -> bytes:
    """Digest of all action rows and of the posts' classes, stages and families."""
    digest = blake2b(digest_size=16)
    pairs = np.zeros(0, dtype=np.int8) if rows.overlapped is None else rows.overlapped
    for column in (
        *(rows.row_start, rows.kind, rows.lane, rows.chunk, rows.microbatch, rows.slice, pairs),
        *(posts.klass, posts.lane, posts.chunk, posts.family, posts.first_stage),
    ):
        digest.update(len(column).to_bytes(8))
        digest.update(np.ascontiguousarray(column).data)
    return digest.digest()


@lru_cache(maxsize=8)
def _tasks_of(lowering: _Lowering) -> tuple[Templates, Instances]:
    """Templates and instances of all tasks (cached: equal plans share the arrays)."""
    classes, posts, shape = lowering.classes, lowering.posts, lowering.shape
    laid = actions_as_tasks(lowering.rows, classes, posts, shape)
    links = TaskGraphBuilder(laid.count, laid.columns)
    laid.link_row(links)
    _link_chunks(laid, links)
    _link_slices(laid, links)
    _start_together(laid, posts, shape, links)
    _add_sends(laid, posts, lowering.senders, shape, links)
    add_gathers_and_reductions(laid, classes, posts, lowering.stages, shape, links)
    return templates_and_instances(links, meets=laid.meets)


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
    senders: tuple[_Senders, ...],
    shape: TaskShape,
    links: TaskGraphBuilder,
) -> None:
    """Add one send for each action whose tensor crosses a stage edge, with its dependencies.

    On the sender's stream; a receiver and its coupled classes wait for every tensor that they
    receive.
    """
    back_first, back_last = laid.backward(laid.first), laid.backward(laid.last)
    for (kind, stream, forward), columns in zip(
        (
            (TaskKind.SEND_F, Stream.SEND_F, True),
            (TaskKind.SEND_B, Stream.SEND_B, False),
        ),
        senders,
        strict=True,
    ):
        source, number, sent, received = (
            np.array(column, dtype=np.int64) for column in columns[:4]
        )
        local = np.array(columns.local, dtype=np.int64).reshape(-1, 2)
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


def _senders(
    posts: Posts, edges: tuple[LaneEdge, ...], class_of: Int32Array, *, forward: bool
) -> _Senders:
    """The posts that send forward or backward along the stage edges, and those that receive."""
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
    return _Senders(
        tuple(source), tuple(edge_of_sender), tuple(sent), tuple(received), tuple(local)
    )
