"""Check of the structural rules that a plan must keep before it can be lowered.

Each violation has a rule id, a path and a hint.

These checks need the lowered plan and are elsewhere: deadlock, coverage of gradients, whether shard
degrees divide each sync group.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.split_part_sizes import proportional_parts
from shardwright.strategy.plan.split_tree_span_and_leaf_overlap import depth
from shardwright.strategy.plan.stage_splits_and_policies import Placement
from shardwright.strategy.rule_violations import Violation, raise_first
from shardwright.strategy.text.split_tree_notation import MAX_DEPTH
from shardwright.strategy.verify.block_coverage import (
    StagePieces,
    coverage,
    operators_of,
    stage_pieces,
)
from shardwright.strategy.verify.no_empty_split_parts import part_rules
from shardwright.strategy.verify.order_rules import order_rules
from shardwright.strategy.verify.stage_placement_split_and_keep_rules import (
    placement_rules,
    stage_rules,
)
from shardwright.strategy.verify.zero_rules import shard_violations


def verify(
    plan: Plan, *, model: Model, global_batch: int, seq_len: int | None = None
) -> tuple[Violation, ...]:
    """Structural rules that a plan breaks for a model and batch; `seq_len` None: no token counts.

    Args:
        seq_len: text tokens of a sample; None = not known, and slices and parts of the sequence are
            not checked for tokens.
    """
    return tuple(_verify(plan, model=model, global_batch=global_batch, seq_len=seq_len))


def require_valid(
    plan: Plan, *, model: Model, global_batch: int, seq_len: int | None = None
) -> None:
    """Raise the first structural rule that a plan breaks, as a StrategyError.

    Raises:
        StrategyError: with the rule's id and path.
    """
    raise_first(_verify(plan, model=model, global_batch=global_batch, seq_len=seq_len))


def _verify(
    plan: Plan, *, model: Model, global_batch: int, seq_len: int | None
) -> Iterator[Violation]:
    """Yield the violations that `verify` collects, in the order of the checks."""
    trees = [
        p.split
        for lane in plan.lanes
        for s in {id(s.placements): s for s in lane.stages}.values()
        for p in s.placements
    ]
    if any(depth(tree) > MAX_DEPTH for tree in trees):
        yield Violation(
            rule="split.depth",
            message=f"a tree deeper than {MAX_DEPTH}",
            hint="join neighbouring cuts of one dim",
        )
        return
    yield from _lane_violations(plan, model=model, global_batch=global_batch, seq_len=seq_len)
    pieces: dict[str, StagePieces] = {}
    shared: dict[tuple[Placement, ...], tuple[str, dict[str, Operator]]] = {}
    checked: set[object] = set()
    for lane in plan.lanes:
        pieces[lane.name], broken = stage_pieces(lane, model=model)
        yield from broken
        if not broken:
            yield from coverage(lane, pieces[lane.name], model=model)
        for chunk, (stage, parts) in enumerate(zip(lane.stages, pieces[lane.name], strict=True)):
            path = f"lane {lane.name} / stage {chunk}"
            if path in {violation.path for violation in broken}:
                continue
            yield from stage_rules(
                stage, parts, lane=lane, model=model, devices=plan.devices, path=path
            )
            stage_key = (
                lane.name,
                id(stage.placements),
                stage.every,
                tuple((piece.run, piece.operator) for piece in parts),
            )
            if stage_key not in checked:
                empty_parts = tuple(
                    part_rules(stage, parts, lane=lane, model=model, seq_len=seq_len, path=path)
                )
                checked |= {stage_key} if not empty_parts else set()
                yield from empty_parts
            _, operators = shared.setdefault(stage.placements, (path, {}))
            for piece in parts:
                for operator in operators_of(piece, model=model):
                    operators[f"{model.runs[piece.run].block}/{operator.name}"] = operator
    for placements, (path, operators) in shared.items():
        yield from placement_rules(placements, tuple(operators.values()), model=model, path=path)
    yield from shard_violations(plan, model=model)
    yield from order_rules(plan, pieces=pieces, model=model)


def _lane_violations(
    plan: Plan, *, model: Model, global_batch: int, seq_len: int | None
) -> Iterator[Violation]:
    """Check microbatches, slices, distinct names; trained lanes' samples sum to the batch."""
    if not plan.lanes:
        yield Violation(rule="plan.lanes", message="no lanes", hint="at least one")
        return
    names = [lane.name for lane in plan.lanes]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Violation(
            rule="lane.name",
            message=f"two lanes are named {name}",
            hint="one name each",
            path=f"lane {name}",
        )
    trained = [lane for lane in plan.lanes if lane.role is Role.TRAIN]
    for lane in trained:
        yield from _microbatch_violations(lane)
    for lane in plan.lanes:
        yield from _slice_violations(lane, model=model, seq_len=seq_len)
    total = sum(lane.samples for lane in trained)
    if trained and total != global_batch:
        yield Violation(
            rule="lane.samples",
            message=f"the lanes take {total} samples, the global batch is {global_batch}",
            hint="samples of all lanes add up to the global batch",
        )


def _microbatch_violations(lane: Lane) -> Iterator[Violation]:
    """Check that a lane's samples divide by its number of microbatches."""
    if lane.microbatches < 1 or lane.samples < 1 or lane.samples % lane.microbatches:
        yield Violation(
            rule="lane.samples",
            message=f"{lane.samples} samples in {lane.microbatches} microbatches",
            hint="equal microbatches of whole samples",
            path=f"lane {lane.name}",
        )


def _slice_violations(lane: Lane, *, model: Model, seq_len: int | None) -> Iterator[Violation]:
    """Check that each token slice gets tokens and that a model cut into slices is causal."""
    path = f"lane {lane.name}"
    if any(weight < 1 for weight in lane.slices):
        yield Violation(
            rule="lane.slices", message="a slice without tokens", hint="positive weights", path=path
        )
    elif lane.slices and seq_len is not None and min(proportional_parts(seq_len, lane.slices)) < 1:
        yield Violation(
            rule="lane.slices",
            message=f"{seq_len} tokens give a slice none",
            hint="fewer slices, or weights nearer each other",
            path=path,
        )
    run = next((run for run in model.runs if not model.blocks[run.block].is_causal), None)
    if len(lane.slices) > 1 and run is not None:
        yield Violation(
            rule="lane.strict",
            message=(
                f"{len(lane.slices)} slices, but {run.name} reads positions behind its own or"
                " another sequence"
            ),
            hint="token slices are for causal models: drop the slices",
            path=path,
        )
