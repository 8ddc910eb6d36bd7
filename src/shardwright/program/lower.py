"""Lower a plan to tasks: actions of every class of devices on its streams, sends along stage edges,
gathers, reductions.

Everything is arrays over *posts*: a post is a class of devices in one of its stages, and (post,
microbatch, slice) names an action of a kind. One pass lays the rows of all classes, one each links
chunks, slices, sends and gradients; no loop runs over tasks.

Two actions of a pair that run overlapped are laid one after the other, start when both can, and
know each other: what one hides of the other's communication is priced (`simulator.tasks`).
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray, distinct
from shardwright.lazy_dataclass import dataclass
from shardwright.program.buckets import pieces_before
from shardwright.program.instances import Stream, TaskKind
from shardwright.program.orders.rows import ActionRows
from shardwright.program.program import (
    DeviceClass,
    Posts,
    Program,
    TaskShape,
    class_numbers,
    posts_of,
    reached,
)
from shardwright.program.stages.edges import LaneEdge
from shardwright.program.stages.parts import StageParts
from shardwright.program.task_graph import Links, finished
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
    """The Program of `plan`.

    Args:
        stages, rows, classes, edges: see PlanProgram.
        shape: what the tasks depend on beside them.
    """
    posts = posts_of(stages, classes)
    laid = _lay_actions(rows, classes, posts, shape)
    links = Links(laid.columns)
    laid.link_row(links)
    _link_chunks(laid, links)
    _link_slices(laid, links)
    _couple(laid, classes, posts, shape, links)
    _lay_sends(laid, posts, edges, class_numbers(classes), shape, links)
    _lay_sync(laid, classes, posts, stages, shape, links)
    templates, instances = finished(links, meets=laid.meets)
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
    """The actions of all classes as tasks on their compute streams.

    Args:
        columns: of the tasks, as `Templates` has them, and their streams and microbatches.
        first, last: (kinds, posts, microbatches, slices) task of an action, -1 = none; they differ
            for a last backward in pieces.
        following: task after an action in its row.
        closing: (posts,) number of pieces of the last backward, whose last task is `closing_last`;
            0 = none.
        ends: (classes,) last task of each row.
        meets: (tasks,) may run beside a gather or reduction of its devices.
        pairs: (pairs, 3) first task of an action that runs overlapped with the one before it, and
            that one's first and last task.
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

    def link_row(self, links: Links) -> None:
        """Each task of a row follows the one before it."""
        klass = self.columns["klass"]
        same = np.flatnonzero(klass[1:] == klass[:-1])
        links.add(same, same + 1)

    def backward(self, which: IntArray) -> IntArray:
        """Of `first` or `last`: the task of the full backward, or of the input gradient where that
        is apart.
        """
        return np.asarray(np.where(which[_B] >= 0, which[_B], which[_I]), dtype=np.int64)


def _lay_actions(
    rows: ActionRows, classes: tuple[DeviceClass, ...], posts: Posts, shape: TaskShape
) -> _Laid:
    """The row of each class on its compute stream; the last backward of a chunk in pieces."""
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
    of = np.repeat(np.arange(len(kind)), pieces)
    early = ((kind == _B) | (kind == _I)) & (place[_R, post, microbatch, part] >= 0)
    partner = _partners(rows, action, (lane, chunk, kind, part))
    columns = {
        "kind": kind[of],
        "klass": klass[of],
        "lane": lane[of],
        "chunk": chunk[of],
        "slice": part[of],
        "edge": np.full(len(of), -1, dtype=np.int64),
        "piece": np.arange(len(of)) - task[of],
        "pieces": pieces[of],
        "early": early[of].astype(np.int64),
        **{
            f"partner_{name}": values[of]
            for name, values in zip(("lane", "chunk", "kind", "slice"), partner, strict=True)
        },
        "stream": np.full(len(of), int(Stream.COMPUTE), dtype=np.int64),
        "microbatch": microbatch[of],
    }
    known = place >= 0
    after = np.append(klass[1:] == klass[:-1], False)
    following = np.where(after, np.append(task[1:-1], -1), -1)
    beside = _overlaps(rows, action)
    second = np.flatnonzero(beside[:-1] & after[:-1]) + 1
    return _Laid(
        columns=columns,
        first=np.where(known, task[place], -1),
        last=np.where(known, task[place + 1] - 1, -1),
        following=np.where(known, following[place], -1),
        closing=closing,
        closing_last=np.where(final >= 0, task[final + 1] - 1, -1),
        ends=task[begin[1:]] - 1,
        meets=_meets(klass, kind, microbatch, begin, final, posts, shape)[of],
        pairs=np.stack([task[second], task[second - 1], task[second] - 1], axis=1),
    )


def _meets(
    klass: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    begin: IntArray,
    final: IntArray,
    posts: Posts,
    shape: TaskShape,
) -> BoolArray:
    """Which actions may run beside a gather or a reduction: none reduces before a class's first
    chunk closes, and all is gathered when the last first forward begins.
    """
    number = np.arange(len(klass))
    closes = begin[1:].copy()
    held = final >= 0
    np.minimum.at(closes, posts.klass[held], final[held])
    meets = number >= closes[klass]
    if shape.gathers:
        opens = begin[:-1].copy()
        forward = np.flatnonzero((kind == _F) & (microbatch == 0))
        np.maximum.at(opens, klass[forward], forward)
        meets |= number < opens[klass]
    return meets


def _overlaps(rows: ActionRows, action: IntArray) -> BoolArray:
    """Which actions run overlapped with the next one of their row."""
    if rows.overlapped is None:
        return np.zeros(len(action), dtype=np.bool_)
    return np.asarray(rows.overlapped[action] != 0)


def _partners(
    rows: ActionRows, action: IntArray, fields: tuple[IntArray, ...]
) -> tuple[IntArray, ...]:
    """(lane, chunk, kind, slice) of the other action of an overlapped pair; -1 where an action runs
    alone.
    """
    beside = _overlaps(rows, action)
    one = np.flatnonzero(beside)
    result = tuple(np.full(len(action), -1, dtype=np.int64) for _ in fields)
    for found, values in zip(result, fields, strict=True):
        found[one], found[one + 1] = values[one + 1], values[one]
    return result


def _link_chunks(laid: _Laid, links: Links) -> None:
    """Input gradients follow the forward of their own chunk and what was made again for them,
    weight gradients their input gradients.
    """
    first, last = laid.first, laid.last
    links.add(last[_I], first[_W])
    links.add(last[_F], first[_R])
    for kind in (_B, _I):
        links.add(last[_F], first[kind])
        links.add(last[_R], first[kind])


def _link_slices(laid: _Laid, links: Links) -> None:
    """Backward of a slice follows that of the next one, whose queries look back on its keys."""
    first, last = laid.first, laid.last
    links.add(last[_F][:, :, :-1], first[_F][:, :, 1:])
    for kind in (_B, _I):
        links.add(last[kind][:, :, 1:], first[kind][:, :, :-1])


def _couple(
    laid: _Laid, classes: tuple[DeviceClass, ...], posts: Posts, shape: TaskShape, links: Links
) -> None:
    """Classes of a stage that meet in blocking collectives start together, and so do the actions of
    an overlapped pair.
    """
    family_posts: dict[tuple[int, int, int], list[int]] = {}
    for post, key in enumerate(
        zip(posts.lane.tolist(), posts.chunk.tolist(), posts.family.tolist(), strict=True)
    ):
        family_posts.setdefault(key, []).append(post)
    one, other = [], []
    for (lane, chunk, family), mine in family_posts.items():
        joined = {*shape.coupled.get((lane, chunk, family), ()), family}
        peers = [p for f in joined for p in family_posts.get((lane, chunk, f), ())]
        if len(peers) > 1:
            for post in mine:
                for peer in peers:
                    if peer != post:
                        one.append(peer)
                        other.append(post)
    before, task = laid.first[:, one].reshape(-1), laid.first[:, other].reshape(-1)
    known = (before >= 0) & (task >= 0)
    links.start_together(laid.pairs)
    links.start_together(np.stack([before[known], task[known], task[known]], axis=1))


def _lay_sends(
    laid: _Laid,
    posts: Posts,
    edges: tuple[LaneEdge, ...],
    class_of: Int32Array,
    shape: TaskShape,
    links: Links,
) -> None:
    """One send an action and edge on the sender's stream; a receiver and its coupled classes wait
    for all that they receive.
    """
    back_first, back_last = laid.backward(laid.first), laid.backward(laid.last)
    for kind, stream, forward in (
        (TaskKind.SEND_F, Stream.SEND_F, True),
        (TaskKind.SEND_B, Stream.SEND_B, False),
    ):
        source, number, sent, received, local = _crossings(posts, edges, class_of, forward=forward)
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
        made = links.tasks(
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
        tasks[record, microbatch, part] = made
        links.add(after, made)
        same = np.flatnonzero(klass[1:] == klass[:-1])
        links.add(made[same], made[same + 1])
        links.add(tasks[sent], begin[received])
        if shape.blocking:
            following = laid.following[_F] if forward else laid.backward(laid.following)
            links.add(tasks, following[source])


def _crossings(
    posts: Posts, edges: tuple[LaneEdge, ...], class_of: Int32Array, *, forward: bool
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Who sends along which edge in one direction.

    Returns:
        (senders,) post and edge of each sender; (deliveries,) index of the sender and post of the
        receiver; (n, 2) posts of the two stages of an edge of one class, which needs no send.
    """
    source: list[int] = []
    number: list[int] = []
    sent: list[int] = []
    received: list[int] = []
    local: list[tuple[int, int]] = []
    for index, one in enumerate(edges):
        here, there = (
            (one.edge.source, one.edge.target) if forward else (one.edge.target, one.edge.source)
        )
        messages = one.forward if forward else one.backward
        senders, receivers = posts.of_stage[one.lane, here], posts.of_stage[one.lane, there]
        # Between stages of one class each there is nobody else.
        only = len(senders) == len(receivers) == 1 and len(messages.sends) > 0
        to = dict.fromkeys(senders, tuple(receivers)) if only else reached(messages, class_of)
        for klass, post in senders.items():
            if klass in receivers:
                local.append((post, receivers[klass]))
            if klass in to:
                others = [receivers[k] for k in to[klass] if k in receivers]
                sent += [len(source)] * len(others)
                received += others
                source.append(post)
                number.append(index)
    columns = (np.array(column, dtype=np.int64) for column in (source, number, sent, received))
    return (*columns, np.array(local, dtype=np.int64).reshape(-1, 2))  # type: ignore[return-value]


def _lay_sync(
    laid: _Laid,
    classes: tuple[DeviceClass, ...],
    posts: Posts,
    stages: Stages,
    shape: TaskShape,
    links: Links,
) -> None:
    """Gathers before first forwards, reductions after last backwards of all holders, tied weights'
    last, then the update everywhere.
    """
    ends = laid.ends.tolist()
    closing = list(zip(laid.closing_last.tolist(), laid.closing.tolist(), strict=True))
    places = list(zip(posts.lane.tolist(), posts.chunk.tolist(), posts.klass.tolist(), strict=True))
    for klass in range(len(classes)):
        mine = np.flatnonzero(posts.klass == klass)
        previous = -1
        if shape.gathers:
            made = _sync_tasks(links, posts, mine, kind=TaskKind.GATHER)
            links.add(made[:-1], made[1:])
            links.add(made, laid.first[_F, mine, 0, 0])
            previous = int(made[-1])
        closed = mine[laid.closing[mine] > 0]
        closed = closed[np.argsort(laid.closing_last[closed], kind="stable")]
        pieces = laid.closing[closed]
        which = np.repeat(closed, pieces)
        piece = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        reduced = _sync_tasks(
            links, posts, which, kind=TaskKind.REDUCE, piece=piece, pieces=np.repeat(pieces, pieces)
        )
        tied = (
            closed[[places[p] in shape.tied for p in closed.tolist()]] if shape.tied else closed[:0]
        )
        last = _sync_tasks(links, posts, tied, kind=TaskKind.REDUCE_TIED)
        chain = np.concatenate([[previous] if previous >= 0 else [], reduced, last]).astype(
            np.int64
        )
        links.add(chain[:-1], chain[1:])
        befores = [
            before
            for post in closed.tolist()
            for before in _before(laid, posts, stages, shape, closing, places[post], tied=False)
        ]
        befores += [
            before
            for post in tied.tolist()
            for before in _before(laid, posts, stages, shape, closing, places[post], tied=True)
        ]
        waiting = np.repeat(np.concatenate([reduced, last]), [len(before) for before in befores])
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
    every = distinct(np.array(ends, dtype=np.int64))
    links.add(np.tile(every, len(step)), np.repeat(step, len(every)))


def _sync_tasks(
    links: Links,
    posts: Posts,
    which: IntArray,
    *,
    kind: TaskKind,
    piece: IntArray | int = 0,
    pieces: IntArray | int = 1,
) -> IntArray:
    """Tasks of some posts on the stream of gathers and reductions."""
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


def _before(
    laid: _Laid,
    posts: Posts,
    stages: Stages,
    shape: TaskShape,
    closing: Pairs,
    place: tuple[int, int, int],
    *,
    tied: bool,
) -> list[list[int]]:
    """What each piece of a reduction follows: last backwards of all holders, of each the piece that
    ends the same blocks (of tied weights there is one piece, which follows all).

    Args:
        closing: last task and pieces of each post's last backward.
        place: (lane, chunk, class) of the post that reduces.
    """
    lane, chunk, klass = place
    found = (shape.tied if tied else shape.holders).get(place, ())
    pieces = 1 if tied else closing[posts.of_stage[lane, chunk][klass]][1]
    if shape.reduces_last:
        every = sorted({k for _, some in found for k in some} | {klass})
        return [laid.ends[every].tolist()] * pieces
    before: list[list[int]] = [[] for _ in range(pieces)]
    for stage, classes in (((lane, chunk), (klass,)), *found):
        there = posts.of_stage[stage]
        for last, left in [closing[there[k]] for k in classes if k in there]:
            if not left:
                continue
            ends = (
                (left - 1,)
                if tied
                else pieces_before(
                    stages[lane][chunk], stages[stage[0]][stage[1]], pieces=pieces, of=left
                )
            )
            for mine, end in zip(before, ends, strict=True):
                if end is not None:
                    mine.append(last - (left - 1 - end))
    return before
