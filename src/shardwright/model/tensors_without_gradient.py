"""Tensors of a model that need no gradient: the tensors before its first trained parameter.

A tensor has a gradient if an operator before it, or the one that makes it, has a trained parameter.
An operator then computes

    I (input gradient)  iff one of its inputs has a gradient, or it has adapters, or learns
                            biases of its scores,
    W (weight gradient) iff a parameter of its own is trained,

keeps what its backward reads iff what it makes has a gradient, and the cotangent of a tensor moves
iff the tensor has a gradient. Then it runs backward, and weights of its own that are sharded,
trained or not, are gathered for that once more. That is what autograd does with ``requires_grad``:
PyTorch, docs/source/notes/autograd.rst, "Locally disabling gradient computation" ("if at least one
of its input tensors require grad"), read.

Blocks carry the part that their own operators do not say (`Block.constant`); lowering, prices,
model FLOPs and execution read this file.

The gradient of an adapter's first factor needs the cotangent behind it, which is a part of I; that
of a table of biases is a sum of the cotangents of scores, which are too.

Nothing goes back through what an indexer selects: where its operators have no trained parameter,
what they make has no gradient either.

Leaves out: that the rest of an adapter's I may be for nobody, and that a block that runs several
times is one block: where its first copy alone has a constant input, that copy has the backward of
the others (one layer's input gradient). Data have no gradient either; the first product of an image
tower keeps its own, as measured tables count it, unless something of the model is frozen.
"""

from __future__ import annotations

from functools import lru_cache

from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import Operator, OperatorKind


@lru_cache(maxsize=4096)
def without_gradient(block: Block) -> frozenset[str]:
    """Names in `block` without a gradient: operators, ``input`` and ``memory``.

    A lookup reads data, which have no gradient.
    """
    names = set(block.constant)
    for operator in block.operators:
        if names.issuperset(operator.inputs) and not any(p.trainable for p in operator.parameters):
            names.add(operator.name)
    return frozenset(names) | _without_gradient_by_selection(block)


def _without_gradient_by_selection(block: Block) -> frozenset[str]:
    """Names of untrained indexers of blocks, and of untrained operators that feed only them.

    No gradient flows back through a selection of keys.
    """
    readers: dict[str, set[str]] = {}
    for operator in block.operators:
        for name in operator.inputs:
            readers.setdefault(name, set()).add(operator.name)
    names: set[str] = set()
    for operator in reversed(block.operators):
        reader_names = readers.get(operator.name, set())
        chooses = operator.kind is OperatorKind.INDEX and operator.choice is not None
        if not any(p.trainable for p in operator.parameters) and (
            chooses or (reader_names and reader_names <= names)
        ):
            names.add(operator.name)
    return frozenset(names)


def computes_input_gradient(operator: Operator, constant: frozenset[str]) -> bool:
    """True if `operator` computes an input gradient, always with LoRA; see `without_gradient`."""
    learns = operator.distances is not None and operator.distances.trainable
    return (
        operator.adapted
        or learns
        or not (operator.name in constant or constant.issuperset(operator.inputs))
    )


def runs_backward(operator: Operator, constant: frozenset[str]) -> bool:
    """True if the output of `operator` has a gradient: not in `constant` (`without_gradient`).

    `constant` is from `without_gradient`.
    """
    return operator.name not in constant


def has_backward(block: Block) -> bool:
    """True if the output of the last operator of `block` has a gradient."""
    return runs_backward(block.operators[-1], without_gradient(block))
