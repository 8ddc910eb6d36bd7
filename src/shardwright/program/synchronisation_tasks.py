"""Tasks that gather parameters, reduce gradients and update, with the tasks that they follow."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray, distinct
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
    for klass in range(len(classes)):
        own_posts = np.flatnonzero(posts.klass == klass)
        previous = -1
        if shape.gathers:
            gathers = _sync_tasks(links, posts, own_posts, kind=TaskKind.GATHER)
            links.add(gathers[:-1], gathers[1:])
            links.add(gathers, laid.first[int(TaskKind.F), own_posts, 0, 0])
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
    """Add a task on stream SYNC for each of several posts; return the numbers of the tasks."""
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
