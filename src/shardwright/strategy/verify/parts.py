"""Rules that count: whether every part of what is cut has something in it (`verify` calls them)."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.model.ir.block import TEXT
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor import Dim
from shardwright.strategy.plan.lane import Lane, Role
from shardwright.strategy.plan.part_sizes import empty_dims, rounded
from shardwright.strategy.plan.split import Split
from shardwright.strategy.plan.stages import Stage
from shardwright.strategy.verify.coverage import Piece, operators_of
from shardwright.strategy.violation import Violation


def part_rules(
    stage: Stage,
    pieces: tuple[Piece, ...],
    *,
    lane: Lane,
    model: Model,
    seq_len: int | None,
    path: str,
) -> Iterator[Violation]:
    """Every device of a tree has a sample, a token and a run of each width that the tree cuts.

    A width is that of the selected operator with the most runs: coarser operators beside it are
    copied (key heads under query heads).
    """
    if (
        lane.role is not Role.TRAIN
        or lane.microbatches < 1
        or lane.samples < 1
        or stage.every < 1
        or min(lane.slices, default=1) < 1
    ):
        return
    samples = lane.samples * stage.every // lane.microbatches
    operators = [o for piece in pieces for o in operators_of(piece, model=model)]
    texts = any(model.blocks[model.runs[piece.run].block].sequence == TEXT for piece in pieces)
    tokens = min(rounded(seq_len, lane.slices or (1,))) if seq_len is not None and texts else 0
    seen: set[tuple[Split | None, tuple[str, ...]]] = set()
    for placement in stage.placements:
        named = placement.select.classes
        if (placement.split, named) in seen:
            continue
        seen.add((placement.split, named))
        chosen = [o for o in operators if not named or o.klass.value in named]
        counts = widths(chosen) | {Dim.BATCH: samples}
        if tokens:  # not known, or the lane's fault (`lane.slices`), not the tree's
            counts |= {Dim.SEQUENCE: tokens, Dim.CONTEXT: tokens}
        for dim in sorted(empty_dims(placement.split, counts)):
            rule, what = (
                ("split.batch", f"{samples} samples a microbatch")
                if dim is Dim.BATCH
                else ("split.parts", f"{counts[dim]} of {dim.value}")
            )
            yield Violation(
                rule=rule,
                message=f"{what} leave a part without any",
                hint="fewer microbatches or parts"
                if dim is Dim.BATCH
                else "fewer parts, or weights nearer each other",
                path=f"{path} / {','.join(named) or 'all'}",
            )


def widths(operators: list[Operator]) -> dict[Dim, int]:
    """Most runs of each dim of these operators that a cut can fall between; a cut of `t` has those
    of the widest own width.
    """
    found: dict[Dim, int] = {}
    for operator in operators:
        own = operator.width()
        for extent in (*operator.reads, *operator.writes):
            found[extent.dim] = max(found.get(extent.dim, 0), extent.runs)
            if extent.dim is own:
                found[Dim.WIDTH] = max(found.get(Dim.WIDTH, 0), extent.runs)
        if operator.experts is not None:
            found[Dim.EXPERTS] = max(found.get(Dim.EXPERTS, 0), operator.experts.experts)
    return found
