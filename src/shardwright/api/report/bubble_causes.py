"""Causes of the idle stretches of each device class in a simulated step.

A device is idle while its compute stream runs no action and no update. An idle stretch ends when
the device's next task has all its inputs. Each task starts when its last predecessor finishes, so
its start is the sum of the durations along its chain of last predecessors. The chain of the task
that ends the stretch is compared with the chain of the device's own previous task: the stretch is
exactly as long as the first chain is longer than the second. So the difference of the chains says
what the device waited for:

- tasks that send, gather, reduce or update and are in one chain only;
- actions. As far as they take as long as the median action of their kind, the wait belongs to the
  order: the pipeline fills (warm-up) or drains (cool-down), or the order requires it in between. As
  far as they take longer, the wait is the imbalance of the stage that runs them. As far as the
  device's own actions are shorter, it is the imbalance of the device's own stage.

Parts of a difference may be negative, where the device's own chain has more of a kind. The positive
parts are then scaled down so that they add up to the stretch.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.lowered_program import Program
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.simulator.last_predecessor_of_each_task import NO_TASK, last_predecessors
from shardwright.simulator.simulate_plan import Timeline


class IdleCause(IntEnum):
    """Cause of a device's idle time.

    Causes from `IMBALANCE` on name a row of the order: ``IMBALANCE + row`` is the wait for actions
    that take longer on the devices of that row, or the device's own shorter actions.
    """

    WARM_UP = 0
    COOL_DOWN = 1
    ORDER = 2
    MESSAGE = 3
    REDUCTION = 4
    GATHER_OR_UPDATE = 5
    IMBALANCE = 6


_CAUSE_OF_KIND: Final = {
    TaskKind.SEND_F: IdleCause.MESSAGE,
    TaskKind.SEND_B: IdleCause.MESSAGE,
    TaskKind.REDUCE: IdleCause.REDUCTION,
    TaskKind.REDUCE_TIED: IdleCause.REDUCTION,
    TaskKind.GATHER: IdleCause.GATHER_OR_UPDATE,
    TaskKind.STEP: IdleCause.GATHER_OR_UPDATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePieces:
    """Idle stretches of all device classes, divided by cause; sorted by class and start.

    Args:
        klass: class of devices.
        start, duration: picoseconds.
        cause: see `IdleCause`.
    """

    klass: IntArray
    start: IntArray
    duration: IntArray
    cause: IntArray


class _Gaps(NamedTuple):
    """Idle stretches: class, first and last instant, and the tasks at both ends (-1 = none)."""

    klass: IntArray
    start: IntArray
    end: IntArray
    before: IntArray
    after: IntArray


def idle_pieces(program: Program, timeline: Timeline) -> IdlePieces:
    """Idle stretches of all device classes, divided by cause.

    Pieces of a class add up to the step, in picoseconds, with the durations of its actions and
    updates.
    """
    predecessor = last_predecessors(program, timeline.finish)
    gaps = _gaps(program, timeline, predecessor)
    chains = _chains(program, predecessor)
    parts = _chain_differences(gaps, chains)
    return _as_pieces(gaps, *_sums_by_cause(program, timeline, gaps, chains, parts))


def _gaps(program: Program, timeline: Timeline, predecessor: IntArray) -> _Gaps:
    """Stretches from 0 to the step's end without action or update of a class; by class, start."""
    instances, kind = program.instances, program.templates.kind[program.instances.template]
    start, finish = timeline.start, timeline.finish
    computes = (kind <= int(TaskKind.R)) | (kind == int(TaskKind.STEP))
    found = []
    for number in range(len(program.classes)):
        own = np.flatnonzero(computes & (instances.klass == number))
        own = own[np.lexsort((finish[own], start[own]))]
        before, low = np.append(NO_TASK, own), np.append(0, finish[own])
        # After its last task a device waits for the task that ends the step.
        after = np.append(predecessor[own], int(finish.argmax()))
        high = np.append(start[own], int(finish.max()))
        idle = np.flatnonzero(high > low)
        found.append(
            _Gaps(np.full(len(idle), number), low[idle], high[idle], before[idle], after[idle])
        )
    return _Gaps(*map(np.concatenate, zip(*found, strict=True)))


class _Chains(NamedTuple):
    """Chains of last predecessors, in parts that run along one stream.

    Tasks are numbered by their places: class by class, stream by stream, in the order of the
    stream. A part is a run of places of which each task waits for the one before it.

    Args:
        task: (places,) task at each place.
        place: (tasks,) place of each task.
        head: (places,) first place of the part; the last entry stands for no task.
        following: (places + 1,) place of the last predecessor, or of no task.
        depth: (places + 1,) number of tasks of the chain.
    """

    task: IntArray
    place: IntArray
    head: IntArray
    following: IntArray
    depth: IntArray


class _ChainParts(NamedTuple):
    """Runs of places that are in the chain behind one end of a stretch only.

    Args:
        gap: number of the stretch.
        first, last: places.
        sign: 1 for the chain that ends the stretch, -1 for that of the device's previous task.
    """

    gap: IntArray
    first: IntArray
    last: IntArray
    sign: IntArray


def _chains(program: Program, predecessor: IntArray) -> _Chains:
    """Number tasks by class and stream; link each run of consecutive predecessors, with depths."""
    instances, count = program.instances, len(predecessor)
    task = np.lexsort((np.arange(count), instances.stream, instances.klass))
    place = np.empty(count + 1, dtype=np.int64)
    place[task], place[count] = np.arange(count), count
    following = np.append(place[predecessor[task]], count)
    same_stream = (np.diff(instances.klass[task]) == 0) & (np.diff(instances.stream[task]) == 0)
    continues = np.append(False, (following[1:count] == np.arange(count - 1)) & same_stream)
    head = np.append(np.maximum.accumulate(np.where(continues, 0, np.arange(count))), count)
    # The depth of a head is that of its last predecessor, which is as far behind its own head.
    heads = np.append(np.flatnonzero(~continues), count)
    number = np.searchsorted(heads, head[following[heads]])
    distance = following[heads] - head[following[heads]] + 1
    distance[-1] = 0
    distance[following[heads] == count] = 0
    while (number != len(heads) - 1).any():
        distance, number = distance + distance[number], number[number]
    depth = distance[np.searchsorted(heads, head)] + np.arange(count + 1) - head + 1
    depth[count] = 0
    return _Chains(task, place[:count], head, following, depth)


def _chain_differences(gaps: _Gaps, chains: _Chains) -> _ChainParts:
    """Signed parts of the predecessor chains of each stretch's ends, back to their common task."""
    none = len(chains.task)
    number = np.arange(len(gaps.klass))
    ends, begins = (np.append(chains.place, none)[tasks] for tasks in (gaps.after, gaps.before))
    found: list[_ChainParts] = []
    while len(number):
        differ = ends != begins
        number, ends, begins = number[differ], ends[differ], begins[differ]
        # The head that is further from the start cannot be in the other chain, nor is its part.
        deeper = chains.depth[chains.head[ends]] >= chains.depth[chains.head[begins]]
        moved, kept = np.where(deeper, ends, begins), np.where(deeper, begins, ends)
        same_part = chains.head[ends] == chains.head[begins]
        lower = np.minimum(ends, begins)
        higher = np.maximum(ends, begins)
        moved = np.where(same_part, higher, moved)
        sign = np.where(same_part, np.where(ends > begins, 1, -1), np.where(deeper, 1, -1))
        first = np.where(same_part, lower + 1, chains.head[moved])
        found.append(_ChainParts(number, first, moved, sign))
        moved = np.where(same_part, lower, chains.following[chains.head[moved]])
        kept = np.where(same_part, lower, kept)
        ends, begins = np.where(deeper, moved, kept), np.where(deeper, kept, moved)
    if not found:
        empty = np.zeros(0, dtype=np.int64)
        return _ChainParts(empty, empty, empty, empty)
    return _ChainParts(*map(np.concatenate, zip(*found, strict=True)))


def _sums_by_cause(
    program: Program, timeline: Timeline, gaps: _Gaps, chains: _Chains, parts: _ChainParts
) -> tuple[IntArray, IntArray, IntArray]:
    """Sum the differences of the chains: (stretch, cause, picoseconds), sorted by both."""
    instances = program.instances
    kind = program.templates.kind[instances.template[chains.task]]
    duration = (timeline.finish - timeline.start)[chains.task]
    usual = _usual_durations(program, timeline)[chains.task]
    action = kind <= int(TaskKind.R)
    cause_of_kind = np.full(len(TaskKind), -1, dtype=np.int64)
    cause_of_kind[list(map(int, _CAUSE_OF_KIND))] = list(map(int, _CAUSE_OF_KIND.values()))
    row = np.array([device_class.row for device_class in program.classes], dtype=np.int64)
    row_of_part = row[instances.klass[chains.task[parts.last]]]
    amounts = [
        (usual, _phases(program, timeline, gaps)[parts.gap]),
        (np.where(action, duration - usual, 0), int(IdleCause.IMBALANCE) + row_of_part),
        *(
            (
                np.where(cause_of_kind[kind] == int(cause), duration, 0),
                np.full(len(row_of_part), cause),
            )
            for cause in sorted(set(_CAUSE_OF_KIND.values()))
        ),
    ]
    width = int(IdleCause.IMBALANCE) + int(row.max()) + 1
    keys, place = np.unique(
        np.concatenate([parts.gap * width + cause for _, cause in amounts]), return_inverse=True
    )
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(
        sums,
        place.reshape(-1),
        np.concatenate([_sums_of_parts(amount, parts) for amount, _ in amounts]),
    )
    return keys // width, keys % width, sums


def _sums_of_parts(amount: IntArray, parts: _ChainParts) -> IntArray:
    """Sum of the amounts at the places of each part, with the part's sign."""
    before = np.append(0, np.cumsum(amount))
    return np.asarray(parts.sign * (before[parts.last + 1] - before[parts.first]))


def _usual_durations(program: Program, timeline: Timeline) -> IntArray:
    """(tasks,) median picoseconds of the task's kind of action over all stages; 0 = no action.

    Actions of one form have equal kind, slice, recompute and kind of overlapped partner. An action
    in pieces is one action, and each of its pieces is as long as its share of the pieces.
    """
    templates, template = program.templates, program.instances.template
    kind = templates.kind[template]
    action = np.flatnonzero(kind <= int(TaskKind.R))
    piece, pieces = templates.piece[template[action]], templates.pieces[template[action]]
    # The pieces of an action stand one after the other.
    number = np.cumsum(piece == 0) - 1
    first = np.flatnonzero(piece == 0)
    duration = np.zeros(len(first), dtype=np.int64)
    np.add.at(duration, number, timeline.finish[action] - timeline.start[action])
    columns = templates.kind, templates.slice, templates.early, templates.partner_kind
    _, form = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    form_of_action = form.reshape(-1)[template[action[first]]]
    order = np.lexsort((duration, form_of_action))
    begin = np.searchsorted(form_of_action[order], np.arange(int(form.max()) + 2))
    middle = order[np.minimum((begin[:-1] + begin[1:]) // 2, len(order) - 1)]
    median = duration[middle][form_of_action][number]
    usual = np.zeros(len(template), dtype=np.int64)
    usual[action] = median * (piece + 1) // pieces - median * piece // pieces
    return usual


def _phases(program: Program, timeline: Timeline, gaps: _Gaps) -> IntArray:
    """Phase of each stretch: warm-up before any backward, cool-down after all forwards, else order.

    The pipeline drains after a device's last forward, and fills before its first backward.
    """
    klass = program.instances.klass
    kind = program.templates.kind[program.instances.template]
    first_backward = np.full(len(program.classes), np.iinfo(np.int64).max)
    last_forward = np.zeros(len(program.classes), dtype=np.int64)
    backward = np.flatnonzero((kind == int(TaskKind.B)) | (kind == int(TaskKind.I)))
    forward = np.flatnonzero(kind == int(TaskKind.F))
    np.minimum.at(first_backward, klass[backward], timeline.start[backward])
    np.maximum.at(last_forward, klass[forward], timeline.finish[forward])
    return np.where(
        gaps.start >= last_forward[gaps.klass],
        int(IdleCause.COOL_DOWN),
        np.where(
            gaps.end <= first_backward[gaps.klass], int(IdleCause.WARM_UP), int(IdleCause.ORDER)
        ),
    )


def _as_pieces(gaps: _Gaps, gap: IntArray, cause: IntArray, amount: IntArray) -> IdlePieces:
    """Divide each stretch by the positive amounts of its causes, scaled to the stretch's length.

    Args:
        gap, cause, amount: sorted by stretch; the amounts of a stretch add up to its length.
    """
    positive = amount > 0
    gap, cause, amount = gap[positive], cause[positive], amount[positive]
    length = gaps.end - gaps.start
    total = np.zeros(len(length), dtype=np.int64)
    np.add.at(total, gap, amount)
    scaled = np.minimum(np.floor(amount * (length / total)[gap]).astype(np.int64), amount)
    exact = total[gap] == length[gap]
    scaled[exact] = amount[exact]
    # Rounding leaves less than a picosecond for each cause; the largest one takes it.
    rest = length.copy()
    np.subtract.at(rest, gap, scaled)
    largest = np.lexsort((scaled, gap))[np.cumsum(np.bincount(gap, minlength=len(length))) - 1]
    scaled[largest] += rest
    kept = scaled > 0
    gap, cause, scaled = gap[kept], cause[kept], scaled[kept]
    before = np.cumsum(scaled) - scaled
    first = np.searchsorted(gap, np.arange(len(length)))
    return IdlePieces(
        klass=gaps.klass[gap],
        start=gaps.start[gap] + before - before[first][gap],
        duration=scaled,
        cause=cause,
    )
