"""Local parameter elements of a block, by how their gradients are summed; and its matrices."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardwright.arrays import IntArray
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor import ParameterClass
from shardwright.program.block.block import BlockProgram
from shardwright.program.block.sizes import Degrees, evaluate

ELEMENTS = ("dense", "experts", "spread", "shared", "frozen", "tied", "narrow_dense", "narrow_experts")
"""Trainable elements whose gradients are summed over dp x cp (dense), over edp (experts), or over more devices (spread); those of dense
that other blocks use too (shared); elements without a gradient (frozen), and trainable ones that another block stores (tied); those of
dense and experts that a recipe of few bits quantises (narrow)."""


def parameter_elements(program: BlockProgram, degrees: Degrees, *, shared: frozenset[str] = frozenset()) -> dict[str, IntArray]:
    """Local elements by how their gradients are summed (`ELEMENTS`).

    Args:
        shared: parameters, as ``block.parameter``, that other blocks use too.
    """
    n = np.shape(degrees["mbs"])[0]
    counts = {name: np.zeros(n, dtype=np.int64) for name in ELEMENTS}
    for stored in program.stored:
        elements = evaluate(stored.elements, degrees)
        if stored.tied:
            counts["tied"] += elements * stored.trainable
        elif not stored.trainable:
            counts["frozen"] += elements
        else:
            wider = np.zeros(n, dtype=np.bool_)
            for axis in stored.summed_along:
                wider |= degrees[axis] > 1
            for runs, axes in stored.coarse:
                wider |= runs % np.prod([degrees[axis] for axis in axes], axis=0) != 0
            kind = "experts" if stored.klass is ParameterClass.EXPERTS else "dense"
            counts[kind] += np.where(wider, 0, elements)
            if stored.narrow:
                counts[f"narrow_{kind}"] += np.where(wider, 0, elements)
            counts["spread"] += np.where(wider, elements, 0)
            if f"{program.block}.{stored.parameter}" in shared:
                counts["shared"] += np.where(wider, 0, elements)
    return counts


def matrices(operators: Iterable[Operator], *, experts: bool) -> int:
    """Trainable matrices that a block stores, of experts or of all else; at least 1. All experts' matrix of one name counts as one.

    Vectors are left out: DeepSpeed keeps parameters of fewer than 100,000 elements whole (`stage3_param_persistence_threshold`).
    """
    stored = (p for o in operators for p in o.parameters if p.trainable and not p.tied_to and len(p.extents) > 1)
    return max(sum((p.klass is ParameterClass.EXPERTS) is experts for p in stored), 1)
