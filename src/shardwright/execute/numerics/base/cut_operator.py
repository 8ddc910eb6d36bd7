"""One operator of a block that a cut lies in, as a block of its own: what it reads comes in the
stream's layout, what it makes leaves so.

Rows that tokens send to their experts have no layout: between stages they lie with their tokens,
those of all choices side by side (`slots`), with the experts' numbers behind them. A routed
operator of a cut block so stands between two more: ``.scatter`` sends the slots of tokens to the
chosen experts, ``.gather`` brings what they make back. What moves tokens (``permute``,
``unpermute``) only copies or sums slots then.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.model.gradients import asks_inputs, without_gradient
from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor import Dim, Extent
from shardwright.program.block.operator_placement import is_routed

SCATTER, GATHER = ".scatter", ".gather"


def is_chosen(extent: Extent) -> bool:
    """The extent is the numbers of the chosen experts: whole numbers without a gradient, which no
    cut divides.
    """
    return extent.dim is Dim.REPLICATE


def is_stand_in(operator: Operator) -> bool:
    """The operator stands for what another node of a cut block made."""
    return operator.kind is OperatorKind.RESIDUAL and not operator.reads


def crossing(operator: Operator) -> tuple[Extent, ...]:
    """What an operator of a cut block leaves in the stream's layout, per token: all that it writes;
    of rows at experts their slots.
    """
    if operator.experts is None or not (is_routed(operator) or operator.kind is OperatorKind.ROUTE):
        return operator.writes
    chosen = Extent(dim=Dim.REPLICATE, size=operator.experts.topk, quantum=operator.experts.topk)
    if operator.kind is OperatorKind.ROUTE:
        return (*operator.writes, chosen)
    if _returns(operator):
        return operator.writes
    sizes = [operator.experts.topk * e.size for e in operator.writes]
    return (*(Extent(dim=Dim.HIDDEN, size=size, quantum=size) for size in sizes), chosen)


def _returns(operator: Operator) -> bool:
    return operator.kind is OperatorKind.PERMUTE and operator.name.endswith("unpermute")


@lru_cache(maxsize=1024)
def operator_block(block: Block, name: str) -> Block:
    """Operator `name` of `block`, behind a stand-in for each operator that it reads."""
    known = {o.name: o for o in block.operators}
    operator = known[name]
    read = [known[n] for n in dict.fromkeys(operator.inputs) if n in known]
    stands = tuple(
        Operator(
            name=o.name,
            kind=OperatorKind.RESIDUAL,
            klass=OperatorClass.STREAM,
            inputs=(MEMORY,) if o.inputs == (MEMORY,) else (INPUT,),
            writes=crossing(o),
        )
        for o in read
    )
    constant = () if asks_inputs(operator, without_gradient(block)) else (INPUT, MEMORY)
    return replace(
        block,
        name=f"{block.name}.{name}",
        operators=(*stands, *_parts(replace(operator, keeps=()))),
        constant=constant,
    )


def _parts(operator: Operator) -> tuple[Operator, ...]:
    """The operator where it stands alone."""
    if operator.kind is OperatorKind.ROUTE:
        return (replace(operator, writes=crossing(operator)),)
    if not is_routed(operator):
        return (operator,)
    if operator.kind is OperatorKind.PERMUTE:
        return (replace(operator, klass=OperatorClass.ROUTER, writes=crossing(operator)),)
    (rows,) = operator.inputs
    slots = crossing(replace(operator, writes=operator.reads))
    move = replace(operator, kind=OperatorKind.PERMUTE, parameters=(), gated=False)
    return (
        replace(
            move,
            name=f"{operator.name}{SCATTER}",
            inputs=(rows,),
            reads=slots,
            writes=operator.reads,
        ),
        replace(operator, inputs=(f"{operator.name}{SCATTER}",)),
        replace(
            move,
            name=f"{operator.name}{GATHER}",
            inputs=(operator.name, rows),
            reads=operator.writes,
            writes=crossing(operator),
        ),
    )
