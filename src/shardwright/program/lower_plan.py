"""Lower a general plan to a Program: actions of every class of devices on its streams, sends along stage edges, gathers, reductions.

Two actions of a pair that run overlapped are laid one after the other, start when both can, and know each other: what one hides of the
other's communication is priced (`simulator.plan_tasks`).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shardwright.program.action_rows import ActionRows
from shardwright.program.instances import Instances, Stream, TaskKind
from shardwright.program.plan_program import DeviceClass, LaneEdge, PlanProgram, PlanShape, PlanTemplate, class_numbers
from shardwright.program.stage_edges import Messages
from shardwright.program.stage_parts import StageParts
from shardwright.strategy.plan import Plan

Int64 = npt.NDArray[np.int64]
Key = tuple[int, int, int, int, int, int]
"""(class, lane, chunk, kind, microbatch, slice)."""

_BACK = (int(TaskKind.B), int(TaskKind.I))
_CLOSING = (int(TaskKind.B), int(TaskKind.W))


def lower_plan(
    plan: Plan,
    *,
    stages: tuple[tuple[StageParts, ...], ...],
    rows: ActionRows,
    classes: tuple[DeviceClass, ...],
    edges: tuple[LaneEdge, ...],
    shape: PlanShape,
) -> PlanProgram:
    """The Program of `plan`.

    Args:
        stages, rows, classes, edges: see PlanProgram. shape: what the tasks depend on beside them.
    """
    builder = _Builder(plan, rows, classes, edges, shape)
    for klass in range(len(classes)):
        builder.lay_actions(klass)
    builder.link_chunks()
    builder.link_slices()
    builder.lay_sends()
    builder.lay_sync()
    templates, instances = builder.finish()
    return PlanProgram(plan=plan, stages=stages, rows=rows, classes=classes, edges=edges, templates=templates, instances=instances)


class _Builder:
    """Collects tasks and their dependencies, class by class."""

    def __init__(
        self, plan: Plan, rows: ActionRows, classes: tuple[DeviceClass, ...], edges: tuple[LaneEdge, ...], shape: PlanShape
    ) -> None:
        self.plan, self.rows, self.classes, self.edges, self.shape = plan, rows, classes, edges, shape
        self.templates: list[PlanTemplate] = []
        self.numbers: dict[PlanTemplate, int] = {}
        self.tasks: list[tuple[int, int, int, int]] = []
        self.links: list[tuple[int, int]] = []
        self.first: dict[Key, int] = {}
        self.last: dict[Key, int] = {}
        self.after: dict[Key, int] = {}
        self.closing: dict[tuple[int, int, int], list[int]] = {}
        self.ends: list[int] = []
        self.meets: list[int] = []
        self.pairs: list[tuple[int, int, int]] = []
        self.class_of = class_numbers(classes)
        self.family = {(k, lane, chunk): f for k, c in enumerate(classes) for lane, chunk, f in c.families}
        self.members: dict[tuple[int, int], list[int]] = defaultdict(list)
        for k, c in enumerate(classes):
            for lane, chunk, _ in c.families:
                self.members[lane, chunk].append(k)

    def add(self, template: PlanTemplate, stream: Stream, microbatch: int) -> int:
        number = self.numbers.setdefault(template, len(self.templates))
        if number == len(self.templates):
            self.templates.append(template)
        self.tasks.append((number, template.klass, int(stream), microbatch))
        return len(self.tasks) - 1

    def lay_actions(self, klass: int) -> None:
        """The row of a class on its compute stream; the last backward of a chunk in pieces."""
        rows = self.rows
        span = range(int(rows.row_start[self.classes[klass].row]), int(rows.row_start[self.classes[klass].row + 1]))
        actions = [(int(rows.lane[a]), int(rows.chunk[a]), int(rows.kind[a]), int(rows.microbatch[a]), int(rows.slice[a])) for a in span]
        final: dict[tuple[int, int], int] = {}
        for place, (lane, chunk, kind, _, _) in enumerate(actions):
            if kind in _CLOSING:
                final[lane, chunk] = place
        early = {a[:2] + a[3:] for a in actions if a[2] == TaskKind.R}
        partner = self._partners(span, actions)
        begins = max((place for place, a in enumerate(actions) if a[2] == TaskKind.F and a[3] == 0), default=0)
        first_close = min(final.values(), default=len(actions))
        previous, before = -1, None
        for place, (lane, chunk, kind, microbatch, part) in enumerate(actions):
            closes = final.get((lane, chunk)) == place
            pieces = self.shape.pieces.get((lane, chunk), 1) if closes else 1
            key = (klass, lane, chunk, kind, microbatch, part)
            for piece in range(pieces):
                template = PlanTemplate(
                    kind=TaskKind(kind),
                    klass=klass,
                    lane=lane,
                    chunk=chunk,
                    slice=part,
                    piece=piece,
                    pieces=pieces,
                    early=kind in _BACK and (lane, chunk, microbatch, part) in early,
                    partner=partner.get(place),
                )
                task = self.add(template, Stream.COMPUTE, microbatch)
                if previous >= 0:
                    self.links.append((previous, task))
                self.first.setdefault(key, task)
                if closes:
                    self.closing.setdefault((klass, lane, chunk), []).append(task)
                if place >= first_close or (self.shape.gathers and place < begins):
                    self.meets.append(task)
                previous = task
            self.last[key] = previous
            if before is not None:
                self.after[before] = self.first[key]
                if place - 1 in partner and self._overlaps(span[place - 1]):
                    self.pairs.append((self.first[key], self.first[before], self.last[before]))
            before = key
        self.ends.append(previous)

    def _overlaps(self, action: int) -> bool:
        return self.rows.overlapped is not None and bool(self.rows.overlapped[action])

    def _partners(self, span: range, actions: list[tuple[int, int, int, int, int]]) -> dict[int, tuple[int, int, int, int]]:
        """By place in the row: the other action of an overlapped pair."""
        result = {}
        for place, action in enumerate(span):
            if self._overlaps(action):
                for one, other in ((place, place + 1), (place + 1, place)):
                    lane, chunk, kind, _, part = actions[other]
                    result[one] = (lane, chunk, kind, part)
        return result

    def coupled(self, klass: int, lane: int, chunk: int) -> list[int]:
        """Classes of a stage that start together with `klass`."""
        families = self.shape.coupled.get((lane, chunk, self.family[klass, lane, chunk]), ())
        return [k for k in self.members[lane, chunk] if k == klass or self.family[k, lane, chunk] in families]

    def link_chunks(self) -> None:
        """Input gradients follow the forward of their own chunk, weight gradients their input gradients; coupled classes wait together."""
        for key, task in self.first.items():
            klass, lane, chunk, kind, microbatch, part = key
            for peer in self.coupled(klass, lane, chunk):
                before = self.first.get((peer, *key[1:]))
                if peer != klass and before is not None:
                    self.pairs.append((before, task, task))
            if kind == TaskKind.W:
                self._link(self.last.get((klass, lane, chunk, int(TaskKind.I), microbatch, part)), task)
            elif kind in _BACK or kind == TaskKind.R:
                self._link(self.last.get((klass, lane, chunk, int(TaskKind.F), microbatch, part)), task)
            if kind in _BACK:
                self._link(self.last.get((klass, lane, chunk, int(TaskKind.R), microbatch, part)), task)

    def _link(self, before: int | None, after: int) -> None:
        if before is not None:
            self.links.append((before, after))

    def link_slices(self) -> None:
        """Backward of a slice follows that of the next one, whose queries look back on its keys."""
        for (klass, lane, chunk, kind, microbatch, part), task in self.first.items():
            if kind in _BACK:
                self._link(self.last.get((klass, lane, chunk, kind, microbatch, part + 1)), task)
            elif kind == TaskKind.F and part:
                self._link(self.last.get((klass, lane, chunk, kind, microbatch, part - 1)), task)

    def lay_sends(self) -> None:
        """One send an action and edge on the sender's stream; a receiver and its coupled classes wait for all that they receive."""
        waiting: dict[tuple[int, Stream], list[tuple[int, int]]] = defaultdict(list)
        for number, lane_edge in enumerate(self.edges):
            lane, edge = lane_edge.lane, lane_edge.edge
            for kinds, kind, stream, messages, source, target in (
                ((int(TaskKind.F),), TaskKind.SEND_F, Stream.SEND_F, lane_edge.forward, edge.source, edge.target),
                (_BACK, TaskKind.SEND_B, Stream.SEND_B, lane_edge.backward, edge.target, edge.source),
            ):
                reached = self._reached(messages)
                for klass in self.members[lane, source]:
                    others = reached.get(klass, set())
                    local = klass in self.members[lane, target]
                    for action in kinds:
                        self._lay_edge(klass, lane, source, target, action, kind, stream, number, others, local, waiting)
        for (_, _), sends in waiting.items():
            sends.sort()
            for (_, one), (_, two) in pairwise(sends):
                self.links.append((one, two))

    def _lay_edge(
        self,
        klass: int,
        lane: int,
        source: int,
        target: int,
        action: int,
        kind: TaskKind,
        stream: Stream,
        number: int,
        others: set[int],
        local: bool,
        waiting: dict[tuple[int, Stream], list[tuple[int, int]]],
    ) -> None:
        lane_of = self.plan.lanes[lane]
        back = _BACK if action in _BACK else (action,)
        for microbatch in range(lane_of.microbatches):
            for part in range(max(len(lane_of.slices), 1)):
                key = (klass, lane, source, action, microbatch, part)
                if key not in self.last:
                    continue
                done = self.last[key]
                if local:
                    self._deliver(done, (klass,), lane, target, back, microbatch, part)
                if not others:
                    continue
                template = PlanTemplate(kind=kind, klass=klass, lane=lane, chunk=source, slice=part, edge=number)
                send = self.add(template, stream, microbatch)
                self.links.append((done, send))
                waiting[klass, stream].append((done, send))
                if self.shape.blocking and key in self.after:
                    self.links.append((send, self.after[key]))
                self._deliver(send, tuple(others), lane, target, back, microbatch, part)

    def _deliver(
        self, task: int, targets: tuple[int, ...], lane: int, chunk: int, kinds: tuple[int, ...], microbatch: int, part: int
    ) -> None:
        for klass in targets:
            for kind in kinds:
                self._link_known(task, (klass, lane, chunk, kind, microbatch, part))

    def _link_known(self, task: int, key: Key) -> None:
        if key in self.first:
            self.links.append((task, self.first[key]))

    def _reached(self, messages: Messages) -> dict[int, set[int]]:
        """Class -> classes that its devices send to."""
        result: dict[int, set[int]] = defaultdict(set)
        ends = self.class_of[messages.sends[:, :2] + messages.base]
        for source, target in np.unique(ends, axis=0).tolist():
            result[source].add(target)
        return result

    def lay_sync(self) -> None:
        """Gathers before first forwards, reductions after last backwards of all holders, then the update everywhere."""
        ends = list(self.ends)
        for klass, device_class in enumerate(self.classes):
            chunks = [(lane, chunk) for lane, chunk, _ in device_class.families]
            previous = -1
            if self.shape.gathers:
                for lane, chunk in chunks:
                    task = self.add(PlanTemplate(kind=TaskKind.GATHER, klass=klass, lane=lane, chunk=chunk), Stream.SYNC, -1)
                    self._link(previous if previous >= 0 else None, task)
                    self._link_known(task, (klass, lane, chunk, int(TaskKind.F), 0, 0))
                    previous = task
            for lane, chunk in sorted((c for c in chunks if (klass, *c) in self.closing), key=lambda c: self.closing[klass, *c][-1]):
                pieces = len(self.closing[klass, lane, chunk])
                for piece in range(pieces):
                    template = PlanTemplate(kind=TaskKind.REDUCE, klass=klass, lane=lane, chunk=chunk, piece=piece, pieces=pieces)
                    task = self.add(template, Stream.SYNC, -1)
                    self._link(previous if previous >= 0 else None, task)
                    self._wait_for_holders(task, klass, lane, chunk, piece)
                    previous = task
            if previous >= 0:
                ends.append(previous)
        for klass in range(len(self.classes)):
            step = self.add(PlanTemplate(kind=TaskKind.STEP, klass=klass), Stream.COMPUTE, -1)
            self.links += [(end, step) for end in sorted(set(ends))]

    def _wait_for_holders(self, task: int, klass: int, lane: int, chunk: int, piece: int) -> None:
        if self.shape.reduces_last:
            holders = {k for _, classes in self.shape.holders.get((lane, chunk, klass), ()) for k in classes} | {klass}
            self.links += [(self.ends[k], task) for k in sorted(holders)]
            return
        self.links.append((self.closing[klass, lane, chunk][piece], task))
        for (other_lane, other_chunk), classes in self.shape.holders.get((lane, chunk, klass), ()):
            for k in classes:
                closing = self.closing.get((k, other_lane, other_chunk))
                if closing:
                    self.links.append((closing[min(piece, len(closing) - 1) if (other_lane, other_chunk) == (lane, chunk) else -1], task))

    def finish(self) -> tuple[tuple[PlanTemplate, ...], Instances]:
        """The arrays, with successors in CSR form; a coupled task also waits for what its partners wait for."""
        count = len(self.tasks)
        source, target = (np.array(column, dtype=np.int64) for column in zip(*self.links, strict=True))
        source, target = _together(source, target, self.pairs)
        order = np.argsort(source, kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=count))])
        template, klass, stream, microbatch = (np.array(column, dtype=np.int32) for column in zip(*self.tasks, strict=True))
        beside_sync = np.zeros(count, dtype=np.bool_)
        beside_sync[self.meets] = True
        instances = Instances(
            template=template,
            klass=klass,
            stream=stream,
            microbatch=microbatch,
            beside_sync=beside_sync,
            indegree=np.bincount(target, minlength=count).astype(np.int32),
            successor_start=start.astype(np.int32),
            successor=target[order].astype(np.int32),
        )
        for name in Instances.__slots__:
            getattr(instances, name).setflags(write=False)
        return tuple(self.templates), instances


def _together(source: Int64, target: Int64, pairs: list[tuple[int, int, int]]) -> tuple[Int64, Int64]:
    """The edges; and of each (task, first and last task of another action) that start together, those to the task also to the first one.

    What the task waits for of the other action itself, which may be in pieces, only lays the two one after the other.
    """
    if not pairs:
        return source, target
    into: dict[int, list[int]] = defaultdict(list)
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        into[b].append(a)
    more = {(a, first) for one, first, last in pairs for a in into[one] if not first <= a <= last}
    extra = np.array(sorted(more), dtype=np.int64).reshape(-1, 2)
    both = np.unique(np.concatenate([np.stack([source, target], axis=1), extra]), axis=0)
    return both[:, 0], both[:, 1]
