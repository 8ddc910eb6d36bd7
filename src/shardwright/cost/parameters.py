"""Local parameter elements of a block, by how their gradients are summed and by when they are gathered; and its matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.model.gradients import runs_backward
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor import Parameter, ParameterClass
from shardwright.program.block.block import BlockProgram, Stored
from shardwright.program.block.sizes import Degrees, evaluate

KINDS: Final = ("dense", "experts")
"""Elements that dp x cp hold, and that edp holds."""
PASSES: Final = ("forward", "backward")
"""For which ZeRO-3 gathers parameters."""
GATHERED: Final = tuple(f"{name}_{kind}" for name in PASSES for kind in KINDS)
ELEMENTS: Final = (
    *("dense", "experts", "spread", "shared", "frozen", "frozen_dense", "frozen_experts", "tied", "narrow_dense", "narrow_experts"),
    *GATHERED,
    *(f"narrow_{name}" for name in GATHERED),
)
"""Trainable elements whose gradients are summed over dp x cp (dense), over edp (experts), or over more devices (spread); those of dense
that other blocks use too (shared); elements without a gradient (frozen, and of them those that dp x cp and edp hold), and trainable ones
that another block stores (tied); of those that dp x cp and edp hold, trained or not, those that work in the forward and in the backward;
of each those that a recipe of few bits quantises (narrow)."""


def parameter_elements(program: BlockProgram, degrees: Degrees, *, shared: frozenset[str] = frozenset()) -> dict[str, IntArray]:
    """Local elements by how their gradients are summed and when they are gathered (`ELEMENTS`).

    Args:
        shared: parameters, as ``block.parameter``, that other blocks use too.
    """
    n = np.shape(degrees["mbs"])[0]
    counts = {name: np.zeros(n, dtype=np.int64) for name in ELEMENTS}
    for stored in program.stored:
        elements = evaluate(stored.elements, degrees)
        if stored.tied:
            counts["tied"] += elements * stored.trainable
            continue
        wider = _is_wider(stored, degrees)
        near = np.where(wider, 0, elements)
        kind = KINDS[stored.klass is ParameterClass.EXPERTS]
        names = [f"{name}_{kind}" for name in PASSES[: 1 + stored.backward]]
        names.append(kind if stored.trainable else f"frozen_{kind}")
        for name in names:
            counts[name] += near
            if stored.narrow and f"narrow_{name}" in counts:
                counts[f"narrow_{name}"] += near
        if not stored.trainable:
            counts["frozen"] += elements
            continue
        counts["spread"] += elements - near
        if f"{program.block}.{stored.parameter}" in shared:
            counts["shared"] += near
    return counts


def _is_wider(stored: Stored, degrees: Degrees) -> BoolArray:
    """(n,) more devices hold the same elements than those of dp x cp, or of edp."""
    wider = np.zeros(np.shape(degrees["mbs"])[0], dtype=np.bool_)
    for axis in stored.summed_along:
        wider |= degrees[axis] > 1
    for runs, axes in stored.coarse:
        wider |= runs % np.prod([degrees[axis] for axis in axes], axis=0) != 0
    return wider


def trained_matrices(operators: Iterable[Operator], *, experts: bool) -> int:
    """Trainable matrices that a block stores; see `_matrices`."""
    return _matrices((p for o in operators for p in o.parameters if p.trainable), experts=experts)


def gathered_matrices(operators: Iterable[Operator], constant: frozenset[str], *, experts: bool) -> tuple[int, int]:
    """Matrices of a block, trained or not, that work in the forward, and in the backward; see `_matrices`.

    Args:
        constant: see `without_gradient`.
    """
    every = tuple(operators)
    back = (p for o in every if runs_backward(o, constant) for p in o.parameters)
    return _matrices((p for o in every for p in o.parameters), experts=experts), _matrices(back, experts=experts)


def _matrices(parameters: Iterable[Parameter], *, experts: bool) -> int:
    """Matrices that a block stores, of experts or of all else; at least 1. All experts' matrix of one name counts as one.

    Vectors are left out: DeepSpeed keeps parameters of fewer than 100,000 elements whole (`stage3_param_persistence_threshold`).
    """
    stored = (p for p in parameters if not p.tied_to and len(p.extents) > 1)
    return max(sum((p.klass is ParameterClass.EXPERTS) is experts for p in stored), 1)
