"""Lower bound of all members of one pipeline by labels, and the cuts that reach it or come near."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazy_dataclass import dataclass
from shardwright.search.joint import label_options
from shardwright.search.joint.label_dynamic_program import LABELS, reach, ways_on
from shardwright.search.joint.label_options import OPTIONS, Cells, Pipeline, Splits, fill

PRECISION = 1e-4
"""Relative distance of the lower bound from the least time that the labels allow."""
LOOSER = (1.0, 1.003, 1.01, 1.03)
"""Multiples of the bound for which a cut is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChoice:
    """The run of positions, the split and the recompute of one rank.

    Args:
        layers: positions of the chain.
        split: place among the pipeline's splits.
        redone: first layers of each chunk that are recomputed in full.
        selective: layers behind those that are recomputed selectively.
    """

    layers: int
    split: int
    selective: int = 0
    redone: int = 0


Cut = tuple[RankChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Args: lower_s: no member of the pipeline ends earlier. cuts: those that the labels found,
    distinct, best first; empty = no member fits or none ends by the limit.
    """

    lower_s: float
    cuts: tuple[Cut, ...]


def cells_of(splits: Splits, pipe: Pipeline, *, limit: float, alike: bool) -> Cells:
    """All options of every rank and run whose bound is at most `limit` seconds."""
    length = splits.sums.shape[2] - 1
    position_seconds = (splits.sums[:, 0] + splits.sums[:, 1]).min(axis=0)
    # Positions that fit into the limit wherever the run starts: runs are short where the time is.
    width, longest = 1, length - pipe.ranks + 1
    for size in range(1, longest + 1):
        shortest = (
            (position_seconds[size:] - position_seconds[:-size]).min()
            if len(splits.sums) == 1
            else _shortest(splits, size)
        )
        if pipe.microbatches * shortest > limit:
            break
        width = size
    shape = (pipe.ranks, length, width, OPTIONS)
    cells = Cells(
        numbers=np.full((*shape, label_options.CHAIN + 1), np.inf),
        code=np.full(shape, -1, dtype=np.int64),
        back=np.full(1, np.inf),
    )
    cells.numbers[..., label_options.BEGIN] = 0.0
    fill(splits, pipe, cells, limit, alike)
    return cells


def _shortest(splits: Splits, size: int) -> float:
    time = splits.sums[:, 0] + splits.sums[:, 1]
    return float((time[:, size:] - time[:, :-size]).min())


def border_of(splits: Splits) -> float:
    """Seconds of a send between ranks, the same for all splits of a pipeline."""
    return float(splits.fixed[:, label_options.BORDER].min())


def solve(splits: Splits, pipe: Pipeline, *, limit: float, alike: bool) -> Solved:
    """Lower bound in seconds of all members of a pipeline, before jitter and clipping, with the
    cuts that reach it; `limit` if no member is below it.

    Stage bounds of rank k, P = begin and the ranks before it out and back: P + m (F + B) + update,
    and way + (m - 1) B + (m - p + k) F + update; way = P and the trip of a microbatch from the rank
    on, at least. For one chunk a rank at most p - k microbatches are in flight: P + trips one after
    another (`cost.round_trips`) + update.

    Under any order (`Pipeline.any_order`), with P the ranks before out alone: gather + P + m (F + I
    + W) + update; P (1 + b) + m (F + I) + update, b = least (I + send) / (F + send); and way + (m -
    1) I + max(m - c, 0) F + update, c = microbatches that fit. Those are head, work and tail of
    `search.orders.bounds`.
    """
    length, p = splits.sums.shape[2] - 1, pipe.ranks
    label, rest = np.empty((p + 1, length + 1, LABELS, 2)), np.empty((p + 1, length + 1))
    back = np.zeros((p + 1, length + 1, LABELS), dtype=np.int64)
    cells = cells_of(splits, pipe, limit=limit, alike=alike)
    way = ways_on(cells, rest)
    if way == np.inf:
        return Solved(lower_s=limit, cuts=())
    border = border_of(splits)
    low = 0.0
    if pipe.chunks == 1:
        low = (
            way * (1.0 + float(cells.back[0]))
            if pipe.any_order
            else way * ((pipe.microbatches - 1) // p + 1)
        )
    if low > limit or reach(cells, pipe, border, rest, limit, label, back) == np.inf:
        return Solved(lower_s=limit, cuts=())
    # `low` bounds every member from below: with a limit of `low` no label reaches the end. The
    # tests of `reach` are lower bounds of a member's time that never fall when the limit falls, so
    # the least limit that some label meets can be found by halving.
    low, high = max(low, 1e-12), limit
    while high > low * (1 + PRECISION):
        middle = (low + min(high, 2 * low)) / 2 if high > 2 * low else (low + high) / 2
        if reach(cells, pipe, border, rest, middle, label, back) == np.inf:
            low = middle
        else:
            high = middle
    cuts: list[Cut] = []
    for factor in LOOSER:
        if reach(cells, pipe, border, rest, min(high * factor, limit), label, back) < np.inf:
            cut = _cut_of(cells, label, back)
            if cut not in cuts:
                cuts.append(cut)
    return Solved(lower_s=low, cuts=tuple(cuts))


def _cut_of(cells: Cells, label: FloatArray, back: IntArray) -> Cut:
    """The cut that the fastest label with all positions stands for."""
    choices: list[RankChoice] = []
    ranks, j = label.shape[0] - 1, label.shape[1] - 1
    place = int(label[ranks, j, :, 0].argmin())
    for k in range(ranks, 0, -1):
        run, place = divmod(int(back[k, j, place]), LABELS)
        w, option = divmod(run, OPTIONS)
        i = j - w - 1
        choices.append(choice_of(int(cells.code[k - 1, i, w, option]), layers=w + 1))
        j = i
    return tuple(reversed(choices))


def choice_of(code: int, *, layers: int) -> RankChoice:
    """The rank's choice in a cell's code (`label_program.code_of`)."""
    rest, redone = divmod(code, 4096)
    split, selective = divmod(rest, 4096)
    return RankChoice(layers=layers, split=split, selective=selective, redone=redone)


def load_label_kernels() -> None:
    """Load the compiled kernels of the joint search by solving a chain of two positions that
    take no time.
    """
    splits = Splits(
        sums=np.zeros((1, label_options.HOST_FULL + 1, 3)),
        again=np.zeros((1, 2, 2)),
        fixed=np.zeros((1, label_options.SLOWER + 1), dtype=np.float64),
    )
    pipe = Pipeline(
        ranks=1,
        chunks=1,
        microbatches=1,
        capacity=1.0,
        reserve=1.0,
        workspace=0.0,
        blocking=False,
        gathers_first=False,
        reduces_last=False,
    )
    solve(splits, pipe, limit=1.0, alike=False)
