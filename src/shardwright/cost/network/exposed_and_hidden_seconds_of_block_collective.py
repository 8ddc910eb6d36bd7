"""Seconds of one communication of a block, and the part that kernels beside it hide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.network.expert_dispatch_seconds import dispatch_seconds, volume_with_rows
from shardwright.cost.network.grid_groups_and_collective_seconds import Network, move_seconds
from shardwright.cost.part_phase_recompute_keys import ACROSS
from shardwright.hardware.catalog.fitted_training_constants import family_of
from shardwright.program.block.block_program import Exposure, Move, Phase
from shardwright.program.block.symbolic_sizes import Degrees, evaluate
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ExpertDispatch, TpOverlap


def on_own_kernels(move: Move, runtime: Runtime) -> bool:
    """True if a tp, Ulysses or expert collective runs as a plain library kernel, unfused.

    All members of a group wait for such a collective.

    Those of tensor parallelism, and those of all tokens or of every routed copy that no other
    microbatch's kernels run beside.
    """
    if move.axes[0] in ACROSS:
        return (
            runtime.expert_dispatch is not ExpertDispatch.DEDUPLICATED
            and not runtime.expert_overlap
        )
    fused = (
        runtime.tp_overlap in (TpOverlap.FUSED, TpOverlap.ASYNC)
        and move.exposure is not Exposure.BLOCKING
    )
    return move.axes[0] in ("tp", "ulysses") and not fused


def one_move_seconds(move: Move, degrees: Degrees, span: Span, network: Network) -> FloatArray:
    """Seconds of one execution of a move over the groups of `span`, hidden or not."""
    volume = np.zeros(len(span.size))
    for size in move.volume:
        volume = volume + evaluate(size, degrees)
    if move.copies:
        volume = volume_with_rows(volume, rows=move.rows, span=span)
        return dispatch_seconds(volume=volume, copies=move.copies, span=span, groups=move.groups)
    return move_seconds(move.kind, volume=volume, span=span, network=network)


def least_move_seconds(
    move: Move, *, degrees: Degrees, spans: Callable[[Move], tuple[Span, ...]], network: Network
) -> FloatArray:
    """Least seconds of one execution of a move over all ways in which its groups may lie."""
    first_span, *other_spans = spans(move)
    seconds = one_move_seconds(move, degrees, first_span, network)
    for span in other_spans:
        seconds = np.minimum(seconds, one_move_seconds(move, degrees, span, network))
    return seconds


def move_cost(
    move: Move,
    seconds: FloatArray,
    size: IntArray,
    *,
    wait_s: float,
    by_operator: dict[tuple[str, Phase], FloatArray],
    yielding: dict[tuple[str, Phase], FloatArray],
    core: dict[Phase, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """(exposed, hidden) seconds of a move by its `exposure`; `wait_s` x log2(`size`) is added.

    Args:
        seconds: seconds of the move once.
        size: members of its groups.
        wait_s: seconds that a collective between a step's kernels takes beyond a test of its own,
            for each doubling of members.
        by_operator: seconds of kernels that are cut into pieces for it.
        yielding: of those that only leave it multiprocessors.
    """
    if not move.copies and wait_s:
        seconds = seconds + wait_s * np.log2(size)
    if move.hops:
        hops = size - 1
        beside = core[move.phase] / np.maximum(hops + 1, 1)
        exposed = np.asarray(hops * np.maximum(seconds - beside, 0.0), dtype=np.float64)
        return exposed, hops * seconds - exposed
    if move.exposure is Exposure.BLOCKING:
        return seconds, np.zeros_like(seconds)
    if move.exposure in (Exposure.BESIDE_WEIGHT_GRADIENT, Exposure.BESIDE_INPUT_GRADIENT):
        gradient_phase = Phase.W if move.exposure is Exposure.BESIDE_WEIGHT_GRADIENT else Phase.I
        beside = yielding.get(
            (move.beside or move.operator, gradient_phase), np.zeros_like(seconds)
        )
        exposed = np.maximum(seconds - beside, 0.0)
    else:
        beside = by_operator.get((move.beside or move.operator, move.phase), np.zeros_like(seconds))
        pieces = np.maximum(size, 1)
        # A member's own part of a gathered tensor is available at once; the last part that is
        # reduced has no GEMM beside it.
        least_exposed = 0.0 if move.kind is Collective.ALL_GATHER else seconds / pieces
        exposed = np.maximum(least_exposed, seconds - beside)
    capped_exposed: FloatArray = np.minimum(exposed, seconds)
    return capped_exposed, seconds - capped_exposed


_PERSISTENT: Final = ("hopper", "blackwell")


def gemms_yield_multiprocessors(accelerator: str) -> bool:
    """True if a running GEMM yields SMs to a collective: not where GEMM kernels are persistent.

    `accelerator` is a catalog name.

    NCCL's kernels hold some multiprocessors for as long as they run. Up to Ampere a GEMM is many
    short thread blocks, which move to the multiprocessors that are left. From Hopper on it is a
    persistent kernel: one block a multiprocessor, tiles assigned to the blocks beforehand. The
    blocks that find their multiprocessor taken start when the collective is over and then need the
    GEMM's whole time, so both together take as long as one after the other. Runtimes that cut a
    GEMM and its collective into pieces, give the GEMM fewer multiprocessors or copy without any
    (userbuffers, asynchronous TP) are not meant here.

    Source: CUTLASS documentation, ``efficient_gemm``: persistent kernels with a static tile
    scheduler on Hopper (from memory); that cuBLAS does the same is assumed.
    """
    return family_of(accelerator) not in _PERSISTENT
