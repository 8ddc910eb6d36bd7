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
from shardwright.program.task_arrays import TaskKind
from shardwright.simulator.last_predecessor_of_each_task import NO_TASK, last_predecessors
from shardwright.simulator.plan_simulation import Timeline


class IdleCause(IntEnum):
    """What an idle device waits for.

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
    gap, task, sign = _chain_differences(gaps, predecessor)
    sums = _sums_by_cause(program, timeline, gaps, gap, task, sign)
    return _as_pieces(gaps, *sums)


def _gaps(program: Program, timeline: Timeline, predecessor: IntArray) -> _Gaps:
    """Stretches in which a class runs no action and no update, sorted by class and start."""
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


def _chain_differences(gaps: _Gaps, predecessor: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Tasks that are in the chain behind one end of a stretch only.

    Returns:
        (number of the stretch, task, 1 for the chain that ends the stretch and -1 for the chain of
        the device's own previous task), one entry for each.
    """
    none = len(predecessor)
    following = np.append(np.where(predecessor == NO_TASK, none, predecessor), none)
    depth = _depths(following)
    number = np.arange(len(gaps.klass))
    ends = np.where(gaps.after == NO_TASK, none, gaps.after)
    begins = np.where(gaps.before == NO_TASK, none, gaps.before)
    records: list[tuple[IntArray, IntArray, IntArray]] = []
    while len(number):
        differ = ends != begins
        number, ends, begins = number[differ], ends[differ], begins[differ]
        deeper, shallower = depth[ends] >= depth[begins], depth[ends] <= depth[begins]
        records += [
            (number[deeper], ends[deeper], np.ones(int(deeper.sum()), dtype=np.int64)),
            (number[shallower], begins[shallower], -np.ones(int(shallower.sum()), dtype=np.int64)),
        ]
        ends = np.where(deeper, following[ends], ends)
        begins = np.where(shallower, following[begins], begins)
    empty = np.zeros(0, dtype=np.int64)
    columns = zip(*records, strict=True) if records else ((empty,),) * 3
    gap, task, sign = (np.concatenate(column) for column in columns)
    return gap, task, sign


def _depths(following: IntArray) -> IntArray:
    """Number of tasks in the chain of each task; the last entry of `following` ends all chains."""
    depth = np.ones(len(following), dtype=np.int64)
    depth[-1] = 0
    while (following != len(following) - 1).any():
        depth, following = depth + depth[following], following[following]
    return depth


def _sums_by_cause(
    program: Program,
    timeline: Timeline,
    gaps: _Gaps,
    gap: IntArray,
    task: IntArray,
    sign: IntArray,
) -> tuple[IntArray, IntArray, IntArray]:
    """Sum the differences of the chains: (stretch, cause, picoseconds), sorted by both.

    Args:
        gap, task, sign: see `_chain_differences`.
    """
    templates, instances = program.templates, program.instances
    kind = templates.kind[instances.template[task]]
    duration = timeline.finish[task] - timeline.start[task]
    action = kind <= int(TaskKind.R)
    cause_of_kind = np.zeros(len(TaskKind), dtype=np.int64)
    cause_of_kind[list(map(int, _CAUSE_OF_KIND))] = list(map(int, _CAUSE_OF_KIND.values()))
    usual = _usual_durations(program, timeline)[task]
    row = np.array([device_class.row for device_class in program.classes], dtype=np.int64)
    phase = _phases(program, timeline, gaps)
    cause = np.where(
        action, int(IdleCause.IMBALANCE) + row[instances.klass[task]], cause_of_kind[kind]
    )
    width = int(IdleCause.IMBALANCE) + int(row.max()) + 1
    key = np.concatenate([gap * width + cause, (gap * width + phase[gap])[action]])
    amount = np.concatenate([sign * (duration - usual), (sign * usual)[action]])
    keys, place = np.unique(key, return_inverse=True)
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, place, amount)
    return keys // width, keys % width, sums


def _usual_durations(program: Program, timeline: Timeline) -> IntArray:
    """(tasks,) median picoseconds of all actions of the task's form; 0 for other tasks.

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
    """Phase of the pipeline of each stretch: warm-up, cool-down or the order in between.

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
