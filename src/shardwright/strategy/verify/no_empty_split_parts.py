"""Rule that a split tree leaves no device without samples, tokens or heads."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.model.ir.block import TEXT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.plan.split_part_sizes import empty_dims, proportional_parts
from shardwright.strategy.plan.stage_splits_and_policies import Stage
from shardwright.strategy.rule_violations import Violation
from shardwright.strategy.verify.block_coverage import BlockPiece, operators_of


def part_rules(
    stage: Stage,
    pieces: tuple[BlockPiece, ...],
    *,
    lane: Lane,
    model: Model,
    seq_len: int | None,
    path: str,
) -> Iterator[Violation]:
    """Check that no device of a trained stage's split trees lacks samples, tokens or width.

    A width has the parts of the selected operator with the most parts. Operators with fewer parts
    are copied (key heads under query heads).
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
    tokens = (
        min(proportional_parts(seq_len, lane.slices or (1,)))
        if seq_len is not None and texts
        else 0
    )
    checked: set[tuple[Split | None, tuple[str, ...]]] = set()
    for placement in stage.placements:
        class_names = placement.select.classes
        if (placement.split, class_names) in checked:
            continue
        checked.add((placement.split, class_names))
        chosen = [o for o in operators if not class_names or o.klass.value in class_names]
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
                path=f"{path} / {','.join(class_names) or 'all'}",
            )


def widths(operators: list[Operator]) -> dict[Dim, int]:
    """Dim -> most units of operators' tensors that a split divides; width (t): heads, ffn, vocab.

    The width dim (t) has that of the widest operator.
    """
    most_runs: dict[Dim, int] = {}
    for operator in operators:
        width_dim = operator.width()
        for extent in (*operator.reads, *operator.writes):
            most_runs[extent.dim] = max(most_runs.get(extent.dim, 0), extent.runs)
            if extent.dim is width_dim:
                most_runs[Dim.WIDTH] = max(most_runs.get(Dim.WIDTH, 0), extent.runs)
        if operator.experts is not None:
            most_runs[Dim.EXPERTS] = max(most_runs.get(Dim.EXPERTS, 0), operator.experts.experts)
    return most_runs
