"""Lower a plan to tasks on streams: actions, sends, gathers, reductions and updates.

Actions of every device class on its streams, sends along stage edges.

All tasks are arrays over *posts*: a post is a class of devices in one of its stages, and (post,
microbatch, slice) names an action of a kind. One pass lays the rows of all classes, and one each
links chunks, slices, sends and gradients; no loop runs over tasks.

Two actions of a pair that run overlapped are laid one after the other, start when both can, and
name each other: `simulator.kernel_tasks` prices the communication that one hides behind the other.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray, distinct
from shardwright.lazy_dataclass import dataclass
from shardwright.program.gradient_reduction_buckets import pieces_before
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.plan_program import (
    DeviceClass,
    Posts,
    Program,
    TaskShape,
    class_numbers,
    posts_of,
    receiving_classes,
)
from shardwright.program.stages.stage_messages import LaneEdge
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.task_arrays import Stream, TaskKind
from shardwright.program.task_graph_builder import TaskGraphBuilder, templates_and_instances
from shardwright.strategy.plan.plan import Plan

Pairs = list[tuple[int, int]]
Stages = tuple[tuple[StageParts, ...], ...]

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
    laid = _actions_as_tasks(rows, classes, posts, shape)
    links = TaskGraphBuilder(laid.columns)
    laid.link_row(links)
    _link_chunks(laid, links)
    _link_slices(laid, links)
    _start_together(laid, classes, posts, shape, links)
    _add_sends(laid, posts, edges, class_numbers(classes), shape, links)
    _add_gathers_and_reductions(laid, classes, posts, stages, shape, links)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Laid:
    """The actions of all device classes as tasks on their compute streams.

    Args:
        columns: columns of the tasks, as `Templates` has them, and their streams and microbatches.
        first, last: (kinds, posts, microbatches, slices) task of an action, -1 = none; they differ
            for a last backward in pieces.
        following: task after an action in its row.
        closing: (posts,) number of pieces of the last backward, whose last task is `closing_last`;
            0 = none.
        ends: (classes,) last task of each row.
        meets: (tasks,) may run beside a gather or reduction of its devices.
        pairs: (pairs, 3) first task of an action that runs overlapped with the action before it,
            and the first and last task of the latter.
    """

    columns: dict[str, IntArray]
    first: IntArray
    last: IntArray
    following: IntArray
    closing: IntArray
    closing_last: IntArray
    ends: IntArray
    meets: BoolArray
    pairs: IntArray

    def link_row(self, links: TaskGraphBuilder) -> None:
        """Add an edge from each task of a row to the next task."""
        klass = self.columns["klass"]
        rows_continue = np.flatnonzero(klass[1:] == klass[:-1])
        links.add(rows_continue, rows_continue + 1)

    def backward(self, which: IntArray) -> IntArray:
        """The tasks of `first` or `last` for the full backward, or for the input gradient.

        Of the input gradient where it is a separate action.
        """
        return np.asarray(np.where(which[_B] >= 0, which[_B], which[_I]), dtype=np.int64)


def _actions_as_tasks(
    rows: ActionRows, classes: tuple[DeviceClass, ...], posts: Posts, shape: TaskShape
) -> _Laid:
    """The row of each device class as tasks on its compute stream.

    With the last backward of a chunk in pieces.
    """
    row = np.array([c.row for c in classes], dtype=np.int64)
    start, size = (
        rows.row_start[row].astype(np.int64),
        np.diff(rows.row_start)[row].astype(np.int64),
    )
    klass = np.repeat(np.arange(len(classes)), size)
    begin = np.concatenate([[0], np.cumsum(size)])
    action = np.arange(int(begin[-1])) - np.repeat(begin[:-1], size) + np.repeat(start, size)
    kind, lane, chunk, microbatch, part = (
        np.asarray(column[action], dtype=np.int64)
        for column in (rows.kind, rows.lane, rows.chunk, rows.microbatch, rows.slice)
    )
    post = posts.number[klass, posts.first_stage[lane] + chunk]
    shape_of = (
        5,
        len(posts.klass),
        int(microbatch.max(initial=0)) + 1,
        int(part.max(initial=0)) + 1,
    )
    place = np.full(shape_of, -1, dtype=np.int64)
    place[kind, post, microbatch, part] = np.arange(len(kind))
    final = np.full(len(posts.klass), -1, dtype=np.int64)
    closes = np.flatnonzero((kind == _B) | (kind == _W))
    np.maximum.at(final, post[closes], closes)
    closing = np.array(
        [
            shape.pieces.get(key, 1)
            for key in zip(posts.lane.tolist(), posts.chunk.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    closing[final < 0] = 0
    pieces = np.ones(len(kind), dtype=np.int64)
    pieces[final[final >= 0]] = closing[final >= 0]
    task = np.concatenate([[0], np.cumsum(pieces)])
    action_of_task = np.repeat(np.arange(len(kind)), pieces)
    rebuilt_before = ((kind == _B) | (kind == _I)) & (place[_R, post, microbatch, part] >= 0)
    partner = _partners(rows, action, (lane, chunk, kind, part))
    columns = {
        "kind": kind[action_of_task],
        "klass": klass[action_of_task],
        "lane": lane[action_of_task],
        "chunk": chunk[action_of_task],
        "slice": part[action_of_task],
        "edge": np.full(len(action_of_task), -1, dtype=np.int64),
        "piece": np.arange(len(action_of_task)) - task[action_of_task],
        "pieces": pieces[action_of_task],
        "early": rebuilt_before[action_of_task].astype(np.int64),
        **{
            f"partner_{name}": values[action_of_task]
            for name, values in zip(("lane", "chunk", "kind", "slice"), partner, strict=True)
        },
        "stream": np.full(len(action_of_task), int(Stream.COMPUTE), dtype=np.int64),
        "microbatch": microbatch[action_of_task],
    }
    exists = place >= 0
    continues = np.append(klass[1:] == klass[:-1], False)
    following = np.where(continues, np.append(task[1:-1], -1), -1)
    overlaps = _overlaps_next(rows, action)
    overlapped = np.flatnonzero(overlaps[:-1] & continues[:-1]) + 1
    return _Laid(
        columns=columns,
        first=np.where(exists, task[place], -1),
        last=np.where(exists, task[place + 1] - 1, -1),
        following=np.where(exists, following[place], -1),
        closing=closing,
        closing_last=np.where(final >= 0, task[final + 1] - 1, -1),
        ends=task[begin[1:]] - 1,
        meets=_may_overlap_sync(klass, kind, microbatch, begin, final, posts, shape)[
            action_of_task
        ],
        pairs=np.stack([task[overlapped], task[overlapped - 1], task[overlapped] - 1], axis=1),
    )


def _may_overlap_sync(
    klass: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    begin: IntArray,
    final: IntArray,
    posts: Posts,
    shape: TaskShape,
) -> BoolArray:
    """(actions,) True where an action may run beside a parameter gather or a gradient reduction.

    No reduction runs before a class's first chunk closes, and all parameters are gathered when the
    last first forward begins.
    """
    number = np.arange(len(klass))
    closes = begin[1:].copy()
    has_backward = final >= 0
    np.minimum.at(closes, posts.klass[has_backward], final[has_backward])
    meets = number >= closes[klass]
    if shape.gathers:
        opens = begin[:-1].copy()
        forward = np.flatnonzero((kind == _F) & (microbatch == 0))
        np.maximum.at(opens, klass[forward], forward)
        meets |= number < opens[klass]
    return meets


def _overlaps_next(rows: ActionRows, action: IntArray) -> BoolArray:
    """(actions,) True where an action runs overlapped with the next action of its row."""
    if rows.overlapped is None:
        return np.zeros(len(action), dtype=np.bool_)
    return np.asarray(rows.overlapped[action] != 0)


def _partners(
    rows: ActionRows, action: IntArray, fields: tuple[IntArray, ...]
) -> tuple[IntArray, ...]:
    """(lane, chunk, kind, slice) of the other action of an overlapped pair.

    -1 where an action runs alone.
    """
    overlaps = _overlaps_next(rows, action)
    first = np.flatnonzero(overlaps)
    columns = tuple(np.full(len(action), -1, dtype=np.int64) for _ in fields)
    for column, values in zip(columns, fields, strict=True):
        column[first], column[first + 1] = values[first + 1], values[first]
    return columns


def _link_chunks(laid: _Laid, links: TaskGraphBuilder) -> None:
    """Add edges from forward and recompute to the input gradient, and on to the weight gradient.

    Of each chunk.
    """
    first, last = laid.first, laid.last
    links.add(last[_I], first[_W])
    links.add(last[_F], first[_R])
    for kind in (_B, _I):
        links.add(last[_F], first[kind])
        links.add(last[_R], first[kind])


def _link_slices(laid: _Laid, links: TaskGraphBuilder) -> None:
    """Add edges between a microbatch's slices: forward in order, backward in reverse.

    A backward follows the next slice, whose queries attend to its keys.
    """
    first, last = laid.first, laid.last
    links.add(last[_F][:, :, :-1], first[_F][:, :, 1:])
    for kind in (_B, _I):
        links.add(last[kind][:, :, 1:], first[kind][:, :, :-1])


def _start_together(
    laid: _Laid,
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
    laid: _Laid,
    posts: Posts,
    edges: tuple[LaneEdge, ...],
    class_of: Int32Array,
    shape: TaskShape,
    links: TaskGraphBuilder,
) -> None:
    """Add one send for each action and stage edge, with its dependencies.

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
        tasks = np.where(done[source] >= 0, 0, -1)
        record, microbatch, part = np.nonzero(tasks == 0)
        klass = posts.klass[source[record]]
        after = done[source[record], microbatch, part]
        # On a stream tasks stand in the order in which what they send is ready, then edge by edge.
        order = np.lexsort((number[record], after, klass))
        record, microbatch, part, klass, after = (
            record[order],
            microbatch[order],
            part[order],
            klass[order],
            after[order],
        )
        send_tasks = links.tasks(
            len(record),
            kind=int(kind),
            klass=klass,
            lane=posts.lane[source[record]],
            chunk=posts.chunk[source[record]],
            slice=part,
            edge=number[record],
            stream=int(stream),
            microbatch=microbatch,
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
    """Sending posts, receiving posts and local pairs along each stage edge in one direction.

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


def _add_gathers_and_reductions(
    laid: _Laid,
    classes: tuple[DeviceClass, ...],
    posts: Posts,
    stages: Stages,
    shape: TaskShape,
    links: TaskGraphBuilder,
) -> None:
    """Add gathers before first forwards, reductions after last backwards, then the update.

    Reductions follow the last backwards of all holders (tied weights last); the update runs
    everywhere.
    """
    ends = laid.ends.tolist()
    closing = list(zip(laid.closing_last.tolist(), laid.closing.tolist(), strict=True))
    places = list(zip(posts.lane.tolist(), posts.chunk.tolist(), posts.klass.tolist(), strict=True))
    for klass in range(len(classes)):
        own_posts = np.flatnonzero(posts.klass == klass)
        previous = -1
        if shape.gathers:
            gathers = _sync_tasks(links, posts, own_posts, kind=TaskKind.GATHER)
            links.add(gathers[:-1], gathers[1:])
            links.add(gathers, laid.first[_F, own_posts, 0, 0])
            previous = int(gathers[-1])
        closed = own_posts[laid.closing[own_posts] > 0]
        closed = closed[np.argsort(laid.closing_last[closed], kind="stable")]
        pieces = laid.closing[closed]
        reducing = np.repeat(closed, pieces)
        piece = np.arange(len(reducing)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        reduced = _sync_tasks(
            links,
            posts,
            reducing,
            kind=TaskKind.REDUCE,
            piece=piece,
            pieces=np.repeat(pieces, pieces),
        )
        tied = (
            closed[[places[p] in shape.tied for p in closed.tolist()]] if shape.tied else closed[:0]
        )
        tied_reductions = _sync_tasks(links, posts, tied, kind=TaskKind.REDUCE_TIED)
        chain = np.concatenate(
            [[previous] if previous >= 0 else [], reduced, tied_reductions]
        ).astype(np.int64)
        links.add(chain[:-1], chain[1:])
        befores = [
            before
            for post in closed.tolist()
            for before in _tasks_before_reduction(
                laid, posts, stages, shape, closing, places[post], tied=False
            )
        ]
        befores += [
            before
            for post in tied.tolist()
            for before in _tasks_before_reduction(
                laid, posts, stages, shape, closing, places[post], tied=True
            )
        ]
        waiting = np.repeat(
            np.concatenate([reduced, tied_reductions]), [len(before) for before in befores]
        )
        links.add(np.array([b for before in befores for b in before], dtype=np.int64), waiting)
        if len(chain):
            ends.append(int(chain[-1]))
    step = links.tasks(
        len(classes),
        kind=int(TaskKind.STEP),
        klass=np.arange(len(classes)),
        stream=int(Stream.COMPUTE),
        microbatch=-1,
    )
    row_ends = distinct(np.array(ends, dtype=np.int64))
    links.add(np.tile(row_ends, len(step)), np.repeat(step, len(row_ends)))


def _sync_tasks(
    links: TaskGraphBuilder,
    posts: Posts,
    which: IntArray,
    *,
    kind: TaskKind,
    piece: IntArray | int = 0,
    pieces: IntArray | int = 1,
) -> IntArray:
    """Add a task for each of several posts on the stream of gathers and reductions."""
    return links.tasks(
        len(which),
        kind=int(kind),
        klass=posts.klass[which],
        lane=posts.lane[which],
        chunk=posts.chunk[which],
        piece=piece,
        pieces=pieces,
        stream=int(Stream.SYNC),
        microbatch=-1,
    )


def _tasks_before_reduction(
    laid: _Laid,
    posts: Posts,
    stages: Stages,
    shape: TaskShape,
    closing: Pairs,
    place: tuple[int, int, int],
    *,
    tied: bool,
) -> list[list[int]]:
    """For each piece of a reduction, the tasks that it follows.

    Last backwards of all holders, of each the piece that ends the same blocks.

    Tied weights have one piece, which follows all.

    Args:
        closing: last task and pieces of each post's last backward.
        place: (lane, chunk, class) of the post that reduces.
    """
    lane, chunk, klass = place
    holders = (shape.tied if tied else shape.holders).get(place, ())
    pieces = 1 if tied else closing[posts.of_stage[lane, chunk][klass]][1]
    if shape.reduces_last:
        classes_of_holders = sorted(
            {k for _, holder_classes in holders for k in holder_classes} | {klass}
        )
        return [laid.ends[classes_of_holders].tolist()] * pieces
    before: list[list[int]] = [[] for _ in range(pieces)]
    for stage, classes in (((lane, chunk), (klass,)), *holders):
        posts_there = posts.of_stage[stage]
        for last, pieces_there in [closing[posts_there[k]] for k in classes if k in posts_there]:
            if not pieces_there:
                continue
            ends = (
                (pieces_there - 1,)
                if tied
                else pieces_before(
                    stages[lane][chunk], stages[stage[0]][stage[1]], pieces=pieces, of=pieces_there
                )
            )
            for tasks, end in zip(before, ends, strict=True):
                if end is not None:
                    tasks.append(last - (pieces_there - 1 - end))
    return before
