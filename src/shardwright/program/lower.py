"""Lower a grid to a Program.

The walk: block programs (`lower_block`), chunks (`chunks`), classes of ranks (`fold`), then one pass over the order's table that lays
actions, sends, gathers and reductions on streams and links them. The array skeleton depends only on order, classes and pieces, and is kept.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwright.program.block import BlockProgram
from shardwright.program.chunks import Content
from shardwright.program.fold import RankClasses
from shardwright.program.instances import Columns, Instances, Stream, TaskKind, Template, columns_of
from shardwright.program.program import Program, Shape
from shardwright.program.sizes import Degrees, evaluate
from shardwright.schedules.registry import schedule_table
from shardwright.schedules.table import ActionTable
from shardwright.strategy.grid import Grid

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def order_table(grid: Grid, *, microbatches: int) -> ActionTable:
    """The action table of a grid's schedule."""
    return schedule_table(grid.schedule, num_ranks=grid.pp, chunks_per_rank=grid.vpp, num_microbatches=microbatches)


def lower(grid: Grid, *, blocks: tuple[BlockProgram, ...], contents: tuple[Content, ...], classes: RankClasses, shape: Shape) -> Program:
    """The Program of `grid`.

    Args:
        blocks, contents: see Program. classes: from `fold` or `unfolded`. shape: order and pieces.
    """
    templates, columns, instances = _skeleton(shape, _Key(classes))
    return Program(
        grid=grid,
        blocks=blocks,
        contents=contents,
        shape=shape,
        templates=templates,
        columns=columns,
        instances=instances,
        classes=classes,
        table=order_table(grid, microbatches=shape.microbatches),
    )


class _Key:
    """Rank classes as a dictionary key: by what the skeleton reads of them."""

    __slots__ = ("classes", "content")

    def __init__(self, classes: RankClasses) -> None:
        self.classes = classes
        self.content = (
            classes.stage.tobytes(),
            classes.following.tobytes(),
            classes.preceding.tobytes(),
            classes.peers,
            classes.holders,
        )

    def __hash__(self) -> int:
        return hash(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.content == other.content


@lru_cache(maxsize=64)
def _skeleton(shape: Shape, key: _Key) -> tuple[tuple[Template, ...], Columns, Instances]:
    builder = _Builder(shape, key.classes)
    builder.lay()
    templates, instances = builder.finish()
    return templates, columns_of(templates), instances


class _Builder:
    """Lays the tasks of every class, then links them. Tasks are columns of arrays; one loop over classes, none over tasks."""

    def __init__(self, shape: Shape, classes: RankClasses) -> None:
        self.shape = shape
        self.classes = classes
        self.table = schedule_table(
            shape.schedule, num_ranks=shape.ranks, chunks_per_rank=shape.chunks_per_rank, num_microbatches=shape.microbatches
        )
        self.chunks = shape.ranks * shape.chunks_per_rank
        self.templates: list[Template] = []
        self.columns: list[tuple[Int64, int, int, Int64]] = []
        self.count = 0
        self.edges: list[tuple[Int64, Int64]] = []
        size = (len(classes), self.chunks, shape.microbatches)
        self.forward = np.full(size, -1, dtype=np.int64)
        self.backward = np.full(size, -1, dtype=np.int64)
        self.backward_first = np.full(size, -1, dtype=np.int64)
        self.sent_forward = np.full(size, -1, dtype=np.int64)
        self.sent_backward = np.full(size, -1, dtype=np.int64)
        self.gathers: dict[tuple[int, int], int] = {}
        self.reduces: dict[tuple[int, int, int], int] = {}
        self.pieces: dict[tuple[int, int], list[int]] = {}
        self.steps: list[int] = []
        self.last_compute: list[int] = []
        self.beside_sync: list[Int64] = []

    def template(self, kind: TaskKind, klass: int, chunk: int, piece: int = 0, pieces: int = 1) -> int:
        self.templates.append(Template(kind=kind, klass=klass, chunk=chunk, piece=piece, pieces=pieces))
        return len(self.templates) - 1

    def add(self, template: Int64 | int, klass: int, stream: Stream, microbatch: Int64 | int, count: int) -> Int64:
        """Append `count` tasks; their indices."""
        index = np.arange(self.count, self.count + count, dtype=np.int64)
        self.columns.append(
            (np.broadcast_to(np.asarray(template), (count,)), klass, int(stream), np.broadcast_to(np.asarray(microbatch), (count,)))
        )
        self.count += count
        return index

    def link(self, before: Int64 | int, after: Int64 | int) -> None:
        """Edges from `before` to `after`, one to one."""
        source, target = np.broadcast_arrays(np.asarray(before, dtype=np.int64), np.asarray(after, dtype=np.int64))
        self.edges.append((source.reshape(-1), target.reshape(-1)))

    def chain(self, tasks: Int64) -> None:
        """Each task after the one before it."""
        if len(tasks) > 1:
            self.link(tasks[:-1], tasks[1:])

    def lay(self) -> None:
        for klass in range(len(self.classes)):
            self._lay_class(klass)
        self._link_sends()
        self._link_sync()

    def _lay_class(self, klass: int) -> None:
        rank = int(self.classes.stage[klass])
        rows = slice(int(self.table.row_start[rank]), int(self.table.row_start[rank + 1]))
        kind, chunk, microbatch = (column[rows].astype(np.int64) for column in (self.table.kind, self.table.chunk, self.table.microbatch))
        actions = {}
        for c in np.unique(chunk):
            for k in np.unique(kind[chunk == c]):
                actions[(int(c), int(k))] = self.template(TaskKind(int(k)), klass, int(c))
        which = np.zeros(self.chunks * 5, dtype=np.int64)
        for (c, k), template in actions.items():
            which[c * 5 + k] = template
        tasks = self._actions(klass, kind, chunk, microbatch, which)
        first, last = tasks
        self.link(last[:-1], first[1:])
        self.last_compute.append(int(last[-1]))
        self._record(klass, kind, chunk, microbatch, first, last)
        self._lay_sends(klass, rank, kind, chunk, microbatch, last)
        if self.shape.gathers:
            self._lay_gathers(klass, chunk)
        self.steps.append(int(self.add(self.template(TaskKind.STEP, klass, -1), klass, Stream.COMPUTE, -1, 1)[0]))

    def _actions(self, klass: int, kind: Int64, chunk: Int64, microbatch: Int64, which: Int64) -> tuple[Int64, Int64]:
        """First and last task of each action: one and the same, but for last backwards that are cut into pieces."""
        repeats = np.ones(len(kind), dtype=np.int64)
        final = self._final_backwards(kind, chunk)
        for position in final:
            repeats[position] = self.shape.pieces[int(chunk[position])]
        start = np.concatenate([[0], np.cumsum(repeats)])
        template = np.repeat(which[chunk * 5 + kind], repeats)
        base = self.count
        for position in final:
            pieces = int(repeats[position])
            c = int(chunk[position])
            for piece in range(pieces):
                template[start[position] + piece] = self.template(TaskKind(int(kind[position])), klass, c, piece, pieces)
            self.pieces[(klass, c)] = [base + int(start[position]) + piece for piece in range(pieces)]
        tasks = self.add(template, klass, Stream.COMPUTE, np.repeat(microbatch, repeats), int(start[-1]))
        self.beside_sync.append(tasks[np.repeat(self._may_meet_sync(kind, chunk, microbatch, final), repeats)])
        for position in final:
            members = np.array(self.pieces[(klass, int(chunk[position]))], dtype=np.int64)
            self.chain(members)
        return base + start[:-1], base + start[1:] - 1

    def _may_meet_sync(self, kind: Int64, chunk: Int64, microbatch: Int64, final: list[int]) -> npt.NDArray[np.bool_]:
        """Which actions of a row may run beside a gather or reduction of their rank.

        Reductions wait for the first chunk that closes; gathers are over when the last chunk begins. What stands between never meets one.
        """
        position = np.arange(len(kind))
        meets = position >= min(final, default=len(kind))
        if self.shape.gathers:
            begins = np.flatnonzero((kind == TaskKind.F) & (chunk == chunk.max()) & (microbatch == 0))
            meets |= position < int(begins[0])
        return meets

    def _final_backwards(self, kind: Int64, chunk: Int64) -> list[int]:
        """Position of each chunk's last gradient action (B, or W where they are apart)."""
        closing = np.flatnonzero((kind == TaskKind.B) | (kind == TaskKind.W))
        return [int(closing[chunk[closing] == c][-1]) for c in np.unique(chunk[closing])]

    def _record(self, klass: int, kind: Int64, chunk: Int64, microbatch: Int64, first: Int64, last: Int64) -> None:
        forward = kind == TaskKind.F
        back = (kind == TaskKind.B) | (kind == TaskKind.I)
        self.forward[klass, chunk[forward], microbatch[forward]] = first[forward]
        self.backward[klass, chunk[back], microbatch[back]] = last[back]
        self.backward_first[klass, chunk[back], microbatch[back]] = first[back]

    def _lay_sends(self, klass: int, rank: int, kind: Int64, chunk: Int64, microbatch: Int64, last: Int64) -> None:
        if self.shape.ranks == 1:
            return
        for task_kind, stream, mask, store in (
            (TaskKind.SEND_F, Stream.SEND_F, (kind == TaskKind.F) & (chunk < self.chunks - 1), self.sent_forward),
            (TaskKind.SEND_B, Stream.SEND_B, ((kind == TaskKind.B) | (kind == TaskKind.I)) & (chunk > 0), self.sent_backward),
        ):
            where = np.flatnonzero(mask)
            if not len(where):
                continue
            which = np.zeros(self.chunks, dtype=np.int64)
            for c in np.unique(chunk[where]):
                which[c] = self.template(task_kind, klass, int(c))
            sends = self.add(which[chunk[where]], klass, stream, microbatch[where], len(where))
            self.link(last[where], sends)
            self.chain(sends)
            store[klass, chunk[where], microbatch[where]] = sends
            if self.shape.blocking:
                after = where + 1
                inside = after < len(kind)
                following = self._first_of(klass, kind, chunk, microbatch, after[inside])
                self.link(sends[inside], following)

    def _first_of(self, klass: int, kind: Int64, chunk: Int64, microbatch: Int64, positions: Int64) -> Int64:
        forward = kind[positions] == TaskKind.F
        first: Int64 = np.where(
            forward,
            self.forward[klass, chunk[positions], microbatch[positions]],
            self.backward_first[klass, chunk[positions], microbatch[positions]],
        )
        return first

    def _lay_gathers(self, klass: int, chunk: Int64) -> None:
        chunks = [int(c) for c in np.unique(chunk)]
        templates = np.array([self.template(TaskKind.GATHER, klass, c) for c in chunks], dtype=np.int64)
        tasks = self.add(templates, klass, Stream.SYNC, -1, len(chunks))
        self.chain(tasks)
        for c, task in zip(chunks, tasks, strict=True):
            self.gathers[(klass, c)] = int(task)
            self.link(int(task), self.forward[klass, c, 0])

    def _link_sends(self) -> None:
        """A chunk's action starts when every peer of its class has received its input."""
        loop = self.shape.ranks == 1
        for klass in range(len(self.classes)):
            rank = int(self.classes.stage[klass])
            for c in range(rank, self.chunks, self.shape.ranks):
                for peer in self.classes.peers[klass]:
                    before = int(self.classes.preceding[peer])
                    after = int(self.classes.following[peer])
                    if c > 0:
                        source = self.forward[before, c - 1] if loop else self.sent_forward[before, c - 1]
                        self.link(source, self.forward[klass, c])
                    if c < self.chunks - 1:
                        source = self.backward[after, c + 1] if loop else self.sent_backward[after, c + 1]
                        self.link(source, self.backward_first[klass, c])

    def _link_sync(self) -> None:
        """Reductions follow the pieces of last backwards of all holders; the step follows everything everywhere (gradient clipping)."""
        ends: list[int] = list(self.last_compute)
        whole = self.shape.reduces_last
        for klass in range(len(self.classes)):
            mine = sorted((tasks[-1], c) for (k, c), tasks in self.pieces.items() if k == klass)
            previous = self._last_gather(klass)
            for _, c in mine:
                pieces = self.shape.pieces[c]
                for piece in range(pieces):
                    task = int(self.add(self.template(TaskKind.REDUCE, klass, c, piece, pieces), klass, Stream.SYNC, -1, 1)[0])
                    if previous >= 0:
                        self.link(previous, task)
                    for holder in self.classes.holders[klass]:
                        self.link(self.last_compute[holder] if whole else self.pieces[(holder, c)][piece], task)
                    previous = task
            if previous >= 0:
                ends.append(previous)
        sources = np.array(sorted(set(ends)), dtype=np.int64)
        for step in self.steps:
            self.link(sources, np.full(len(sources), step, dtype=np.int64))

    def _last_gather(self, klass: int) -> int:
        return max((task for (k, _), task in self.gathers.items() if k == klass), default=-1)

    def finish(self) -> tuple[tuple[Template, ...], Instances]:
        """The arrays, with successors in CSR form."""
        source = np.concatenate([s for s, _ in self.edges])
        target = np.concatenate([t for _, t in self.edges])
        order = np.argsort(source, kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=self.count))])
        klass = np.repeat([k for _, k, _, _ in self.columns], [len(t) for t, *_ in self.columns])
        stream = np.repeat([s for _, _, s, _ in self.columns], [len(t) for t, *_ in self.columns])
        beside_sync = np.zeros(self.count, dtype=np.bool_)
        beside_sync[np.concatenate(self.beside_sync)] = True
        instances = Instances(
            template=np.concatenate([t for t, *_ in self.columns]).astype(np.int32),
            klass=klass.astype(np.int32),
            stream=stream.astype(np.int32),
            microbatch=np.concatenate([m for *_, m in self.columns]).astype(np.int32),
            beside_sync=beside_sync,
            indegree=np.bincount(target, minlength=self.count).astype(np.int32),
            successor_start=start.astype(np.int32),
            successor=target[order].astype(np.int32),
        )
        for name in Instances.__slots__:
            getattr(instances, name).setflags(write=False)
        return tuple(self.templates), instances


def digest(program: Program, degrees: Degrees) -> str:
    """SHA-256 of a Program's content: local sizes, groups, order, memory choices and sharding; never its notation.

    Args:
        degrees: of the grid, one row. Strategies that mean the same have the same digest.
    """
    grid = program.grid
    hasher = hashlib.sha256()
    strides, sizes = grid.strides(), {"tp": grid.tp, "cp": grid.cp, "dp": grid.dp, "pp": grid.pp}
    groups = sorted((axis, size, strides[axis]) for axis, size in sizes.items() if size > 1)
    experts = (grid.ep, grid.etp)
    hasher.update(repr((program.contents, program.shape, groups, grid.ulysses, grid.gather and grid.ring > 1, experts)).encode())
    holders = grid.dp * grid.cp
    sharding = (grid.zero, grid.shard or holders) if grid.zero else (0, 1)
    hasher.update(repr((sharding, grid.recompute.value, grid.recompute_layers, grid.offload)).encode())
    for block in program.blocks:
        saved = [int(evaluate(s.volume, degrees)[0]) for s in block.saved]
        stored = [int(evaluate(s.elements, degrees)[0]) for s in block.stored]
        moves = [(m.kind.value, m.phase.value, m.axes) for m in block.moves]
        hasher.update(repr((block.block, saved, stored, moves)).encode())
    hasher.update(program.classes.size.tobytes())
    return hasher.hexdigest()
