"""Lower bound on all members of one pipeline by dynamic programming, with its layer cuts."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.joint import price_layer_runs_and_splits_of_each_rank as label_options
from shardwright.search.joint.pipeline_bound_label_kernels import LABELS, reach, ways_on
from shardwright.search.joint.price_layer_runs_and_splits_of_each_rank import (
    OPTIONS,
    Cells,
    Pipeline,
    Splits,
    fill,
)

PRECISION = 1e-4
"""Relative distance of the lower bound from the least time that the labels allow."""
LOOSER = (1.0, 1.003, 1.01, 1.03)
"""Multiples of the least time for which a cut is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChoice:
    """Layers, split and recomputation of one pipeline rank.

    Args:
        layers: positions of the chain.
        split: index in the pipeline's splits.
        redone: first layers of each chunk that are recomputed in full.
        selective: the next layers, recomputed selectively.
    """

    layers: int
    split: int
    selective: int = 0
    redone: int = 0


Cut = tuple[RankChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBound:
    """Lower bound on the members of a pipeline, with layer cuts that reach it or come near.

    Args:
        lower_s: lower bound in seconds on every member.
        cuts: distinct cuts, the best first; empty = no member fits or none ends by the limit.
    """

    lower_s: float
    cuts: tuple[Cut, ...]


def fill_cells(splits: Splits, pipe: Pipeline, *, limit: float, alike: bool) -> Cells:
    """Best options of every rank and run of positions that fit and take <= `limit` seconds."""
    length = splits.sums.shape[2] - 1
    position_seconds = (splits.sums[:, 0] + splits.sums[:, 1]).min(axis=0)
    # Longest run of positions that fits into the limit from any start.
    width, longest = 1, length - pipe.ranks + 1
    for size in range(1, longest + 1):
        shortest = (
            (position_seconds[size:] - position_seconds[:-size]).min()
            if len(splits.sums) == 1
            else _least_run_seconds(splits, size)
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


def _least_run_seconds(splits: Splits, size: int) -> float:
    """Least forward plus backward seconds of `size` consecutive positions, any split and start."""
    time = splits.sums[:, 0] + splits.sums[:, 1]
    return float((time[:, size:] - time[:, :-size]).min())


def border_of(splits: Splits) -> float:
    """Seconds of a send between ranks, the same for all splits of a pipeline."""
    return float(splits.fixed[:, label_options.BORDER].min())


def bound_pipeline(splits: Splits, pipe: Pipeline, *, limit: float, alike: bool) -> PipelineBound:
    """Lower bound in seconds on a pipeline's members (`limit` = none below), and near layer cuts.

    Before jitter and clipping; `limit` if no member is below it. The cuts reach the bound or come
    near.

    Stage bounds of rank k, P = begin and the ranks before it out and back: P + m (F + B) + update,
    and way + (m - 1) B + (m - p + k) F + update; way = P and the trip of a microbatch from the rank
    on, at least. For one chunk a rank at most p - k microbatches are in flight: P + trips one after
    another (`cost.step.stage_span_bound_by_microbatches_in_flight`) + update.

    Under any order (`Pipeline.any_order`), with P the ranks before out alone: gather + P + m (F + I
    + W) + update; P (1 + b) + m (F + I) + update, b = least (I + send) / (F + send); and way + (m -
    1) I + max(m - c, 0) F + update, c = microbatches that fit. Those are head, work and tail of
    `search.orders.makespan_lower_bounds`.
    """
    length, p = splits.sums.shape[2] - 1, pipe.ranks
    label, rest = np.empty((p + 1, length + 1, LABELS, 2)), np.empty((p + 1, length + 1))
    back = np.zeros((p + 1, length + 1, LABELS), dtype=np.int64)
    cells = fill_cells(splits, pipe, limit=limit, alike=alike)
    way = ways_on(cells, rest)
    if way == np.inf:
        return PipelineBound(lower_s=limit, cuts=())
    border = border_of(splits)
    low = 0.0
    if pipe.chunks == 1:
        low = (
            way * (1.0 + float(cells.back[0]))
            if pipe.any_order
            else way * ((pipe.microbatches - 1) // p + 1)
        )
    if low > limit or reach(cells, pipe, border, rest, limit, label, back) == np.inf:
        return PipelineBound(lower_s=limit, cuts=())
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
    return PipelineBound(lower_s=low, cuts=tuple(cuts))


def _cut_of(cells: Cells, label: FloatArray, back: IntArray) -> Cut:
    """The layer cut that the fastest label with all positions stands for."""
    choices: list[RankChoice] = []
    ranks, j = label.shape[0] - 1, label.shape[1] - 1
    place = int(label[ranks, j, :, 0].argmin())
    for k in range(ranks, 0, -1):
        run, place = divmod(int(back[k, j, place]), LABELS)
        w, option = divmod(run, OPTIONS)
        i = j - w - 1
        choices.append(decode_choice(int(cells.code[k - 1, i, w, option]), layers=w + 1))
        j = i
    return tuple(reversed(choices))


def decode_choice(code: int, *, layers: int) -> RankChoice:
    """The rank's choice from an option's code (`label_options.code_of`)."""
    rest, redone = divmod(code, 4096)
    split, selective = divmod(rest, 4096)
    return RankChoice(layers=layers, split=split, selective=selective, redone=redone)


def load_label_kernels() -> None:
    """Load the compiled kernels of the joint search, by solving a chain of two empty positions."""
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
    bound_pipeline(splits, pipe, limit=1.0, alike=False)
