"""The routers of a model whose load is balanced by a loss (those of its own layers), and those with
a bias of the choice.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.model.blocks.multi_token_prediction import PREDICTORS
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import ExpertShape, Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Parameter


def routers(block: Block) -> Iterator[Operator]:
    """The choices of experts of a block; none of a prediction module or a teacher, which the
    published loss leaves out.
    """
    if not block.is_teachers and block.name.partition(".")[0] not in PREDICTORS:
        yield from (
            o for o in block.operators if o.kind is OperatorKind.ROUTE and o.experts is not None
        )


def router_shapes(model: Model) -> tuple[ExpertShape, ...]:
    """The different shapes of a model's routers, in order of their first use."""
    return tuple(
        dict.fromkeys(
            o.experts for block in model.blocks for o in routers(block) if o.experts is not None
        )
    )


def choice_bias(block: Block, operator: Operator) -> Parameter | None:
    """The bias of each expert that counts in a router's choice alone (`e_score_correction_bias`);
    None without, and of a teacher.
    """
    if block.is_teachers or operator.kind is not OperatorKind.ROUTE:
        return None
    return next((p for p in operator.parameters if p.name.endswith(".correction")), None)


def choice_biases(model: Model) -> Iterator[tuple[int, int, str, str]]:
    """(run, layer, router, its bias of the choice) of every router that has one, by names, those of
    prediction modules included.
    """
    for number, run in enumerate(model.runs):
        block = model.blocks[run.block]
        found = [
            (o.name, bias.name)
            for o in block.operators
            if (bias := choice_bias(block, o)) is not None
        ]
        yield from (
            (number, layer, router, bias) for layer in range(run.count) for router, bias in found
        )
