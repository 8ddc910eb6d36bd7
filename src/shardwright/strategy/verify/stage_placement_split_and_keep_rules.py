"""Rules of a lane's stages: placements, split trees and activation policy."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import nearest
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import Split, num_leaves
from shardwright.strategy.plan.split_tree_span_and_leaf_overlap import (
    MAX_LISTED,
    device_span,
    nodes,
    overlaps,
)
from shardwright.strategy.plan.stage_splits_and_policies import (
    ActivationPolicy,
    Keep,
    Placement,
    Stage,
)
from shardwright.strategy.plan.token_intervals_of_devices import device_tokens
from shardwright.strategy.rule_violations import Violation
from shardwright.strategy.verify.block_coverage import BlockPiece, operators_of

_CLASSES = frozenset(klass.value for klass in OperatorClass)
_SIZED = {Dim.HEADS, Dim.FFN, Dim.HIDDEN, Dim.VOCAB}


def last_placement(placements: tuple[Placement, ...], class_name: str) -> Placement | None:
    """The last placement for a class of operators, among those without block range; else None."""
    selecting = [
        p
        for p in placements
        if p.select.blocks is None and (not p.select.classes or class_name in p.select.classes)
    ]
    return selecting[-1] if selecting else None


def has_dim(operator: Operator, dim: Dim) -> bool:
    """True if an operator can be split along `dim`: b, s and x always, others by its tensors."""
    if dim in (Dim.BATCH, Dim.SEQUENCE, Dim.REPLICATE):
        return True
    if dim is Dim.CONTEXT:
        return operator.kind is OperatorKind.ATTENTION
    if dim is Dim.WIDTH:
        return operator.width() is not None
    extents = {extent.dim for extent in (*operator.reads, *operator.writes)}
    if dim is Dim.EXPERTS:
        return operator.experts is not None or dim in extents
    return dim in _SIZED and dim in extents


def placement_rules(
    placements: tuple[Placement, ...], operators: tuple[Operator, ...], *, model: Model, path: str
) -> Iterator[Violation]:
    """Check shared placements: known operator classes, split trees, core's exchange, expert tokens.

    Args:
        operators: all operators of these stages.
    """
    model_classes = {o.klass.value for block in model.blocks for o in block.operators}
    for placement in placements:
        class_names = placement.select.classes
        where = f"{path} / {','.join(class_names) or 'all'}"
        for klass in class_names:
            if klass not in _CLASSES:
                yield Violation(
                    rule="placement.class",
                    message=f"unknown class {klass!r}",
                    hint=nearest(klass, _CLASSES),
                    path=where,
                )
        if class_names and set(class_names) <= _CLASSES and not set(class_names) & model_classes:
            yield Violation(
                rule="placement.unused",
                message="the model has no such operators",
                hint=f"it has {', '.join(sorted(model_classes))}",
                path=where,
            )
        yield from _tree_rules(
            placement.split,
            [o for o in operators if not class_names or o.klass.value in class_names],
            path=where,
        )
        cuts = {node.dim for node in nodes(placement.split)}
        if placement.exchange and (
            not cuts & {Dim.SEQUENCE, Dim.CONTEXT} or (class_names and "core" not in class_names)
        ):
            yield Violation(
                rule="core.exchange",
                message=f"via {placement.exchange.value} without a cut of positions",
                hint="drop it",
                path=where,
            )
        cores = [o for o in operators if o.klass is OperatorClass.CORE and o.attention is not None]
        if (
            cores
            and (not class_names or "core" in class_names)
            and Dim.SEQUENCE in cuts
            and not placement.exchange
            and _is_last_for_core(placement, placements)
        ):
            yield Violation(
                rule="core.exchange",
                message="the core is cut by position but does not say how it sees the others' keys",
                hint="add 'via ring' or 'via gather', or trade the cut for heads (Ulysses)",
                path=where,
            )
    yield from _expert_set_violations(placements, operators, path=path)


def _is_last_for_core(placement: Placement, placements: tuple[Placement, ...]) -> bool:
    """True if no later placement overrides this one for the attention core of the same blocks."""
    later = placements[placements.index(placement) + 1 :]
    return not any(
        (not p.select.classes or "core" in p.select.classes)
        and p.select.blocks in (None, placement.select.blocks)
        for p in later
    )


def _tree_rules(
    split: Split | None, operators: list[Operator], *, path: str
) -> Iterator[Violation]:
    """Check one split tree: no unused dims, zigzag only on positions, no device twice."""
    for dim in dict.fromkeys(node.dim for node in nodes(split)):
        if operators and not any(has_dim(o, dim) for o in operators):
            yield Violation(
                rule="split.unused-dim",
                message=f"no operator here has dim {dim.value}",
                hint="write x to copy on purpose",
                path=path,
            )
    if any(node.zigzag and node.dim not in (Dim.SEQUENCE, Dim.CONTEXT) for node in nodes(split)):
        yield Violation(
            rule="split.zigzag",
            message="only positions are dealt zigzag",
            hint="drop the z, or cut s or c",
            path=path,
        )
    if overlaps(split):
        yield Violation(
            rule="split.devices-overlap",
            message="two parts are on one device",
            hint="check strides and offsets",
            path=path,
        )


def _expert_set_violations(
    placements: tuple[Placement, ...], operators: tuple[Operator, ...], *, path: str
) -> Iterator[Violation]:
    """Check that the tokens a device owns by the router's tree are among those its experts serve.

    Otherwise the all-to-all would cross sets.
    """
    expert, dense = last_placement(placements, "experts"), last_placement(placements, "router")
    if (
        expert is None
        or dense is None
        or expert is dense
        or not any(o.klass is OperatorClass.EXPERTS for o in operators)
    ):
        return
    if max(num_leaves(expert.split), num_leaves(dense.split)) > MAX_LISTED:
        return
    owned = dict(device_tokens(dense.split, first_device=dense.offset))
    served = dict(device_tokens(expert.split, first_device=expert.offset))
    if owned.keys() == served.keys() and not all(
        owned[device].inside(served[device]) for device in owned
    ):
        yield Violation(
            rule="experts.coset",
            message=(
                "the batch and sequence part of the experts' tree is not what the same devices own"
            ),
            hint=(
                "edp x ep x etp devices: the cuts of b and s in the experts' tree must be the"
                " outermost ones of the router's"
            ),
            path=f"{path} / experts",
        )


def stage_rules(
    stage: Stage,
    pieces: tuple[BlockPiece, ...],
    *,
    lane: Lane,
    model: Model,
    devices: int,
    path: str,
) -> Iterator[Violation]:
    """Check one stage's block ranges, missing placements, device numbers and microbatch count."""
    blocks = sum(piece.count for piece in pieces if piece.counted)
    yield from _range_violations(stage, blocks=blocks, model=model, path=path)
    for klass in dict.fromkeys(
        o.klass.value for piece in pieces for o in operators_of(piece, model=model)
    ):
        if last_placement(stage.placements, klass) is None and not _ranges_cover(
            stage, pieces, klass, blocks=blocks, model=model
        ):
            yield Violation(
                rule="placement.missing",
                message=f"no placement says where {klass} operators run",
                hint="begin with a line 'all = ..'",
                path=path,
            )
    reach = max(
        (stage.base + p.offset + device_span(p.split) for p in stage.placements), default=stage.base
    )
    if reach >= devices or stage.base < 0:
        yield Violation(
            rule="plan.devices",
            message=f"device {reach} of {devices}",
            hint="devices are counted from 0",
            path=path,
        )
    if stage.every < 1 or lane.microbatches % stage.every:
        yield Violation(
            rule="stage.every",
            message=f"every {stage.every} of {lane.microbatches} microbatches",
            hint="it divides them",
            path=path,
        )


def _range_violations(stage: Stage, *, blocks: int, model: Model, path: str) -> Iterator[Violation]:
    """Check a stage's block ranges, and names, shares and overlaps of its keep lines."""
    for placement in stage.placements:
        chosen = placement.select.blocks
        if chosen is not None and not 0 <= chosen[0] <= chosen[1] < blocks:
            yield Violation(
                rule="placement.blocks",
                message=f"blocks {chosen[0]}-{chosen[1]} of {blocks}",
                hint="counted from 0",
                path=path,
            )
    marked: set[tuple[int, str]] = set()
    names = _keep_names(model) if stage.keeps else frozenset()
    for keep in stage.keeps:
        if not 0 <= keep.blocks[0] <= keep.blocks[1] < blocks:
            yield Violation(
                rule="keep.blocks",
                message=f"blocks {keep.blocks[0]}-{keep.blocks[1]} of {blocks}",
                hint="counted from 0",
                path=path,
            )
            continue
        for name in keep.operators:
            if name not in names:
                yield Violation(
                    rule="keep.operators",
                    message=f"nothing is named {name!r}",
                    hint=nearest(name, names),
                    path=path,
                )
        moved = keep.how is not ActivationPolicy.RECOMPUTE
        if (
            keep.unit < 1
            or not 1 <= keep.percent <= 100
            or not keep.operators
            or (keep.unit > 1 if moved else keep.percent < 100)
        ):
            yield Violation(
                rule="keep.share",
                message=f"{keep.how.value}: unit {keep.unit}, {keep.percent} percent",
                hint="units of blocks are recomputed, 1 to 100 percent are moved to host or nvme",
                path=path,
            )
        marks = {
            (block, name)
            for block in range(keep.blocks[0], keep.blocks[1] + 1)
            for name in _kept_operators(keep, model=model)
        }
        if marks & marked:
            yield Violation(
                rule="keep.overlap",
                message="one operator of one block is kept in two ways",
                hint="one line each",
                path=path,
            )
        marked |= marks


def _kept_operators(keep: Keep, *, model: Model) -> frozenset[str]:
    """``class.operator`` names that a keep line selects by ``full``, class or operator."""
    return frozenset(
        f"{o.klass.value}.{o.name}"
        for block in model.blocks
        for o in block.operators
        if {"full", o.klass.value, o.name, f"{o.klass.value}.{o.name}"} & set(keep.operators)
    )


def _keep_names(model: Model) -> frozenset[str]:
    """Names that keep lines may use: ``full``, operator classes and operators."""
    operators = {o.name for block in model.blocks for o in block.operators}
    return frozenset(
        {
            "full",
            *_CLASSES,
            *operators,
            *(f"{o.klass.value}.{o.name}" for block in model.blocks for o in block.operators),
        }
    )


def _ranges_cover(
    stage: Stage, pieces: tuple[BlockPiece, ...], class_name: str, *, blocks: int, model: Model
) -> bool:
    """True if placements with block ranges cover every block for a class of operators."""
    for piece in pieces:
        if not piece.counted and any(
            o.klass.value == class_name for o in operators_of(piece, model=model)
        ):
            return False
    chosen = [
        p.select.blocks
        for p in stage.placements
        if p.select.blocks and (not p.select.classes or class_name in p.select.classes)
    ]
    return all(any(start <= block <= end for start, end in chosen) for block in range(blocks))
