"""The routers of a model whose load is balanced: those of its own layers."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.model.blocks.predictor import PREDICTORS
from shardwright.model.ir.block import Block
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import ExpertShape, Operator, OperatorKind


def routers(block: Block) -> Iterator[Operator]:
    """The choices of experts of a block; none of a prediction module or a teacher, which the published loss leaves out."""
    if not block.is_teachers and block.name.partition(".")[0] not in PREDICTORS:
        yield from (o for o in block.operators if o.kind is OperatorKind.ROUTE and o.experts is not None)


def router_shapes(model: Model) -> tuple[ExpertShape, ...]:
    """The different shapes of a model's routers, in order of their first use."""
    return tuple(dict.fromkeys(o.experts for block in model.blocks for o in routers(block) if o.experts is not None))
