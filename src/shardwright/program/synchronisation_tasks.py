"""Tasks that gather parameters, reduce gradients and update, with the tasks that they follow."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Int32Array, IntArray, distinct
from shardwright.program.actions_as_compute_stream_tasks import ActionTasks
from shardwright.program.backward_piece_awaited_by_reduction import pieces_before
from shardwright.program.device_classes_with_equal_actions import DeviceClass, Posts, TaskShape
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.task_graph_builder import TaskGraphBuilder
from shardwright.program.task_kind_stream_and_dependency_arrays import Stream, TaskKind

Pairs = list[tuple[int, int]]


Stages = tuple[tuple[StageParts, ...], ...]


def add_gathers_and_reductions(
    laid: ActionTasks,
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
    added = _SyncTasks(posts, first_number=links.count)
    for klass in range(len(classes)):
        own_posts = np.flatnonzero(posts.klass == klass)
        previous = -1
        if shape.gathers:
            gathers = added.of(own_posts, kind=TaskKind.GATHER)
            links.add(gathers[:-1], gathers[1:])
            links.add(gathers, laid.first[int(TaskKind.F), own_posts, 0, 0])
            previous = int(gathers[-1])
        closed = own_posts[laid.closing[own_posts] > 0]
        closed = closed[np.argsort(laid.closing_last[closed], kind="stable")]
        pieces = laid.closing[closed]
        reducing = np.repeat(closed, pieces)
        piece = np.arange(len(reducing)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        reduced = added.of(
            reducing, kind=TaskKind.REDUCE, piece=piece, pieces=np.repeat(pieces, pieces)
        )
        tied = (
            closed[[places[p] in shape.tied for p in closed.tolist()]] if shape.tied else closed[:0]
        )
        tied_reductions = added.of(tied, kind=TaskKind.REDUCE_TIED)
        chain = np.concatenate(
            [[previous] if previous >= 0 else [], reduced, tied_reductions]
        ).astype(np.int32)
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
        links.add(np.array([b for before in befores for b in before], dtype=np.int32), waiting)
        if len(chain):
            ends.append(int(chain[-1]))
    added.append_to(links)
    step = links.tasks(
        len(classes),
        kind=int(TaskKind.STEP),
        klass=np.arange(len(classes), dtype=np.int32),
        stream=int(Stream.COMPUTE),
        microbatch=-1,
    )
    row_ends = distinct(np.array(ends, dtype=np.int32))
    links.add(np.tile(row_ends, len(step)), np.repeat(step, len(row_ends)))


class _SyncTasks:
    """Tasks on stream SYNC of several posts, which become one part of the task graph."""

    def __init__(self, posts: Posts, *, first_number: int) -> None:
        """Number the tasks from `first_number`."""
        self._posts, self._first, self._next = posts, first_number, first_number
        self._rows: list[Int32Array] = []

    def of(
        self,
        which: IntArray,
        *,
        kind: TaskKind,
        piece: IntArray | int = 0,
        pieces: IntArray | int = 1,
    ) -> Int32Array:
        """Add a task for each of the posts `which`; return the numbers of the tasks."""
        rows = np.empty((4, len(which)), dtype=np.int32)
        rows[0], rows[1], rows[2], rows[3] = int(kind), which, piece, pieces
        self._rows.append(rows)
        self._next += len(which)
        return np.arange(self._next - len(which), self._next, dtype=np.int32)

    def append_to(self, links: TaskGraphBuilder) -> None:
        """Append the tasks, whose numbers follow those of all tasks of `links`."""
        assert links.count == self._first
        kind, post, piece, pieces = np.concatenate(
            [np.empty((4, 0), dtype=np.int32), *self._rows], axis=1
        )
        klass, lane, chunk = (
            column.astype(np.int32)[post]
            for column in (self._posts.klass, self._posts.lane, self._posts.chunk)
        )
        links.tasks(
            len(kind),
            kind=kind,
            klass=klass,
            lane=lane,
            chunk=chunk,
            piece=piece,
            pieces=pieces,
            stream=int(Stream.SYNC),
            microbatch=-1,
        )


def _tasks_before_reduction(
    laid: ActionTasks,
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
