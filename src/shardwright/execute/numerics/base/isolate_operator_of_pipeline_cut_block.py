"""One operator of a block that a pipeline cut divides, as a block of its own.

Rows that tokens send to their experts have no layout. Between stages they are stored with their
tokens as slots: the rows of all chosen experts side by side, followed by the experts' numbers. A
routed operator of a cut block therefore stands between two more operators: ``.scatter`` sends the
slots of tokens to the chosen experts, and ``.gather`` brings the experts' outputs back. ``permute``
and ``unpermute`` then only copy or sum slots.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.model.tensors_without_gradient import computes_input_gradient, without_gradient
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed

SCATTER, GATHER = ".scatter", ".gather"


def is_expert_choice(extent: Extent) -> bool:
    """True if the extent holds numbers of chosen experts: integers that no cut divides."""
    return extent.dim is Dim.REPLICATE


def is_stand_in(operator: Operator) -> bool:
    """True for a stand-in of an input computed elsewhere: a residual operator without reads."""
    return operator.kind is OperatorKind.RESIDUAL and not operator.reads


def stream_extents(operator: Operator) -> tuple[Extent, ...]:
    """Extents written, by token: routed rows as topk slots plus expert numbers; others as they are.

    They are all extents that the operator writes, with slots in place of rows at experts.
    """
    if operator.experts is None or not (is_routed(operator) or operator.kind is OperatorKind.ROUTE):
        return operator.writes
    expert_choice = Extent(
        dim=Dim.REPLICATE, size=operator.experts.topk, quantum=operator.experts.topk
    )
    if operator.kind is OperatorKind.ROUTE:
        return (*operator.writes, expert_choice)
    if _is_unpermute(operator):
        return operator.writes
    sizes = [operator.experts.topk * e.size for e in operator.writes]
    return (*(Extent(dim=Dim.HIDDEN, size=size, quantum=size) for size in sizes), expert_choice)


def _is_unpermute(operator: Operator) -> bool:
    """True if the operator moves experts' outputs back to their tokens."""
    return operator.kind is OperatorKind.PERMUTE and operator.name.endswith("unpermute")


@lru_cache(maxsize=1024)
def operator_block(block: Block, name: str) -> Block:
    """The block of one operator, preceded by a stand-in for each operator that it reads."""
    by_name = {source.name: source for source in block.operators}
    operator = by_name[name]
    read = [by_name[name] for name in dict.fromkeys(operator.inputs) if name in by_name]
    stand_ins = tuple(
        Operator(
            name=source.name,
            kind=OperatorKind.RESIDUAL,
            klass=OperatorClass.STREAM,
            inputs=(MEMORY,) if source.inputs == (MEMORY,) else (INPUT,),
            writes=stream_extents(source),
        )
        for source in read
    )
    constant = () if computes_input_gradient(operator, without_gradient(block)) else (INPUT, MEMORY)
    return replace(
        block,
        name=f"{block.name}.{name}",
        operators=(*stand_ins, *_standalone_operators(replace(operator, keeps=()))),
        constant=constant,
    )


def _standalone_operators(operator: Operator) -> tuple[Operator, ...]:
    """Operators of a one-operator block: expert layers between ``.scatter`` and ``.gather``."""
    if operator.kind is OperatorKind.ROUTE:
        return (replace(operator, writes=stream_extents(operator)),)
    if not is_routed(operator):
        return (operator,)
    if operator.kind is OperatorKind.PERMUTE:
        return (replace(operator, klass=OperatorClass.ROUTER, writes=stream_extents(operator)),)
    (rows,) = operator.inputs
    slots = stream_extents(replace(operator, writes=operator.reads))
    permute = replace(operator, kind=OperatorKind.PERMUTE, parameters=(), gated=False)
    return (
        replace(
            permute,
            name=f"{operator.name}{SCATTER}",
            inputs=(rows,),
            reads=slots,
            writes=operator.reads,
        ),
        replace(operator, inputs=(f"{operator.name}{SCATTER}",)),
        replace(
            permute,
            name=f"{operator.name}{GATHER}",
            inputs=(operator.name, rows),
            reads=operator.writes,
            writes=stream_extents(operator),
        ),
    )
