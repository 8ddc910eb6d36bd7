"""Local parameter elements and matrices of a block, by reduction group and gathering pass."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.cost.gradients.layer_synchronisation_table_classes import KINDS, PASSES
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Parameter, ParameterClass
from shardwright.model.tensors_without_gradient import runs_backward
from shardwright.program.block.block_program import BlockProgram, LocalParameter
from shardwright.program.block.symbolic_sizes import Degrees, evaluate
from shardwright.program.identity_cache_keys import Same

GATHERED: Final = tuple(f"{name}_{kind}" for name in PASSES for kind in KINDS)
ELEMENTS: Final = (
    *(
        "dense",
        "experts",
        "spread",
        "shared",
        "elsewhere",
        "frozen",
        "frozen_dense",
        "frozen_experts",
        "tied",
    ),
    *("narrow_dense", "narrow_experts"),
    *GATHERED,
    *(f"narrow_{name}" for name in GATHERED),
)
"""Trainable elements whose gradients are summed over dp x cp (dense), over edp (experts), or over
more devices (spread); those of dense that the last block uses too (shared), or others (elsewhere);
elements without a gradient (frozen, and of them those that dp x cp and edp hold), and trainable
ones that another block stores (tied), but for those elsewhere; of those that dp x cp and edp hold,
trained or not, those that work in the forward and in the backward; of each those that a recipe of
few bits quantises (narrow)."""


def parameter_elements(
    program: BlockProgram,
    degrees: Degrees,
    *,
    shared: frozenset[str] = frozenset(),
    elsewhere: frozenset[str] = frozenset(),
) -> dict[str, IntArray]:
    """Local parameter elements of a block, by reduction group and gathering pass (`ELEMENTS`).

    Args:
        shared, elsewhere: parameters, as ``block.parameter``, that the last block uses too, or
            others.
    """
    n = np.shape(degrees["mbs"])[0]
    counts = {name: np.zeros(n, dtype=np.int64) for name in ELEMENTS}
    owners = {p.name: p.tied_to for o in program.operators for p in o.parameters}
    for stored in program.stored:
        elements = evaluate(stored.elements, degrees)
        if stored.tied:
            # A copy of what stands between two chains is left out: the rank may have its owner too.
            counts["tied"] += elements * (
                stored.trainable and owners[stored.parameter] not in elsewhere
            )
            continue
        summed_over_replicas = (
            np.where(_is_wider(stored, degrees, rows=n), 0, elements)
            if stored.summed_along or stored.coarse
            else elements
        )
        kind = KINDS[stored.klass is ParameterClass.EXPERTS]
        names = [f"{name}_{kind}" for name in PASSES[: 1 + stored.backward]]
        names.append(kind if stored.trainable else f"frozen_{kind}")
        for name in names:
            counts[name] += summed_over_replicas
            if stored.narrow and f"narrow_{name}" in counts:
                counts[f"narrow_{name}"] += summed_over_replicas
        if not stored.trainable:
            counts["frozen"] += elements
            continue
        counts["spread"] += elements - summed_over_replicas
        for name, names_there in (("shared", shared), ("elsewhere", elsewhere)):
            if f"{program.block}.{stored.parameter}" in names_there:
                counts[name] += summed_over_replicas
    return counts


def _is_wider(stored: LocalParameter, degrees: Degrees, *, rows: int) -> BoolArray:
    """(rows,) True where devices outside dp x cp (or edp) hold the same elements of a parameter."""
    wider = np.zeros(rows, dtype=np.bool_)
    for axis in stored.summed_along:
        wider |= degrees[axis] > 1
    for runs, axes in stored.coarse:
        wider |= runs % np.prod([degrees[axis] for axis in axes], axis=0) != 0
    return wider


def trained_matrices(operators: tuple[Operator, ...], *, experts: bool) -> int:
    """Number (>= 1) of trainable matrices that a block stores: experts', else all others."""
    return _matrices(Same(operators), frozenset()).trained[experts]


def gathered_matrices(
    operators: tuple[Operator, ...], constant: frozenset[str], *, experts: bool
) -> tuple[int, int]:
    """Numbers (>= 1) of a block's matrices used in forward and in backward, trained or frozen.

    Args:
        constant: see `without_gradient`.
    """
    matrices = _matrices(Same(operators), constant)
    return matrices.forward[experts], matrices.backward[experts]


class _Matrices(NamedTuple):
    """Numbers of a block's matrices: trained, used in the forward, used in the backward.

    Of each the number of all other parameters', and of experts'.
    """

    trained: tuple[int, int]
    forward: tuple[int, int]
    backward: tuple[int, int]


@lru_cache(maxsize=4096)
def _matrices(operators: Same[tuple[Operator, ...]], constant: frozenset[str]) -> _Matrices:
    """Numbers of a block's matrices, at least 1: trainable, used in forward, used in backward.

    Of experts and of all other parameters apart.

    All experts' matrix of one name counts as one.

    Vectors are left out: DeepSpeed keeps parameters of fewer than 100,000 elements whole
    (`stage3_param_persistence_threshold`).
    """
    stored = [
        (o, p)
        for o in operators.value
        for p in o.parameters
        if not p.tied_to and len(p.extents) > 1
    ]

    def number_of(parameters: list[tuple[Operator, Parameter]]) -> tuple[int, int]:
        """Numbers, at least 1 each, of matrices outside experts and of experts' matrices."""
        copied = sum(p.klass is ParameterClass.EXPERTS for _, p in parameters)
        return max(len(parameters) - copied, 1), max(copied, 1)

    return _Matrices(
        trained=number_of([(o, p) for o, p in stored if p.trainable]),
        forward=number_of(stored),
        backward=number_of([(o, p) for o, p in stored if runs_backward(o, constant)]),
    )
