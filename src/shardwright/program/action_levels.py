"""What each row of actions keeps for backward while it runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.program.action_rows import ActionRows
from shardwright.schedules.table import B, F, I, Int64, W


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldLevels:
    """Microbatches (slices, where there are any) that a row holds right after each of its forwards, where its peaks stand.

    Args:
        lane, chunk: (stages,) the row's stages. whole: (forwards, stages) those whose backward has not begun.
        stash: (forwards, stages) those whose input gradient is done and whose weight gradient is not.
    """

    lane: Int64
    chunk: Int64
    whole: Int64
    stash: Int64


def held_levels(rows: ActionRows) -> tuple[HeldLevels, ...]:
    """What each row holds. F takes a microbatch, I turns it into a stash, W or B gives it back.

    Left out: recompute as an action (R) changes nothing here; a microbatch without a backward is not held.
    """
    whole, stash = _steps(rows)
    return tuple(
        _row_levels(rows, slice(start, end), whole, stash) for start, end in zip(rows.row_start[:-1], rows.row_start[1:], strict=True)
    )


def _row_levels(rows: ActionRows, mine: slice, whole: Int64, stash: Int64) -> HeldLevels:
    place = np.stack([rows.lane[mine], rows.chunk[mine]]).astype(np.int64)
    stages, stage = np.unique(place, axis=1, return_inverse=True)
    here = stage.reshape(-1)[:, None] == np.arange(stages.shape[1])[None, :]
    forward = rows.kind[mine] == F
    levels = [np.cumsum(np.where(here, step[mine, None], 0), axis=0)[forward] for step in (whole, stash)]
    return HeldLevels(lane=stages[0], chunk=stages[1], whole=levels[0], stash=levels[1])


def peak_in_flight(rows: ActionRows, *, held: Int64 | None = None, stash: Int64 | None = None) -> Int64:
    """(rows,) most that each row holds: sum of `held` from F to I and of `stash` from I to W, or of `held` from F to B.

    Args:
        held: (lanes, stages) or (lanes, stages, slices) of one microbatch or slice, in any unit; None = 1.
        stash: the same, of what stays until W, at most `held`; None = all of it.
    """
    whole, put_off = _steps(rows)
    full = _each(rows, held)
    kept = full if stash is None else _each(rows, stash)
    # A row's sum ends at zero, so one running sum over all rows is each row's own.
    level = np.cumsum(whole * full + put_off * kept)
    return np.array(
        [int(level[start:end].max(initial=0)) for start, end in zip(rows.row_start[:-1], rows.row_start[1:], strict=True)], np.int64
    )


def _each(rows: ActionRows, values: Int64 | None) -> Int64:
    """(actions,) value of each action's stage."""
    if values is None:
        return np.ones(len(rows.kind), np.int64)
    given = np.asarray(values, np.int64)
    return given[rows.lane, rows.chunk] if given.ndim == 2 else given[rows.lane, rows.chunk, rows.slice]


def _steps(rows: ActionRows) -> tuple[Int64, Int64]:
    """(actions,) changes of the numbers held whole and stashed."""
    unit = np.zeros(len(rows.kind), np.int64)
    for column in (rows.row, rows.lane, rows.chunk, rows.microbatch, rows.slice):
        unit = unit * (int(column.max(initial=0)) + 1) + column
    _, unit = np.unique(unit, return_inverse=True)
    unit = unit.reshape(-1)
    count = int(unit.max(initial=-1)) + 1
    has = {kind: np.bincount(unit[rows.kind == kind], minlength=count)[unit] > 0 for kind in (F, I, W, B)}
    ends = has[B] | has[W]
    whole = np.zeros(len(rows.kind), np.int64)
    stash = np.zeros(len(rows.kind), np.int64)
    whole[(rows.kind == F) & ends] = 1
    begins_back = (rows.kind == B) | (rows.kind == I) | ((rows.kind == W) & ~has[I])
    whole[begins_back & ends & has[F]] = -1
    stash[(rows.kind == I) & ends & has[F] & ~has[B]] = 1
    stash[(rows.kind == W) & has[I] & has[F] & ~has[B]] = -1
    return whole, stash
