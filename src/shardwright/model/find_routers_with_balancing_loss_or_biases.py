"""The routers of a model that a load-balancing loss or a selection bias balances."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.model.blocks.multi_token_prediction import PREDICTORS
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import ExpertShape, Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Parameter


def balanced_routers(block: Block) -> Iterator[Operator]:
    """Yield a block's router operators (kind ROUTE); none in a prediction module or teacher block.

    The published loss leaves these out.
    """
    if not block.is_of_teacher and block.name.partition(".")[0] not in PREDICTORS:
        yield from (
            o for o in block.operators if o.kind is OperatorKind.ROUTE and o.experts is not None
        )


def router_shapes(model: Model) -> tuple[ExpertShape, ...]:
    """The distinct expert shapes of a model's routers but predictors' and a teacher's, in order."""
    return tuple(
        dict.fromkeys(
            o.experts
            for block in model.blocks
            for o in balanced_routers(block)
            if o.experts is not None
        )
    )


def selection_bias(block: Block, operator: Operator) -> Parameter | None:
    """The bias of each expert that counts only in a router's selection; None if there is none.

    Published as `e_score_correction_bias`.
    """
    if block.is_of_teacher or operator.kind is not OperatorKind.ROUTE:
        return None
    return next((p for p in operator.parameters if p.name.endswith(".correction")), None)


def selection_biases(model: Model) -> Iterator[tuple[int, int, str, str]]:
    """Yield (run index, layer index in it, router name, bias name) of every selection bias.

    Prediction modules are included.
    """
    for number, run in enumerate(model.runs):
        block = model.blocks[run.block]
        named_biases = [
            (o.name, bias.name)
            for o in block.operators
            if (bias := selection_bias(block, o)) is not None
        ]
        yield from (
            (number, layer, router, bias)
            for layer in range(run.count)
            for router, bias in named_biases
        )
