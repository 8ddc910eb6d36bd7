"""Seconds, FLOPs and saved bytes of a block's kernels on one device, without communication.

They depend on degrees alone, not on how groups lie. Few different degrees occur: many meshes share
them, and so do the tables of one search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.kernels.accelerator_rates import Machine, sixteen_bit_machine
from shardwright.cost.kernels.kernel_seconds_and_gemm_pieces_for_overlap import (
    PART_OF_KERNEL,
    cut_seconds,
    gemm_cut_for,
    linear_gemms,
    piece_sum_seconds,
    unquantised_operators,
    work_seconds,
)
from shardwright.cost.kernels.launch_overhead import HostClock, PairedLayer
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.part_phase_recompute_keys import (
    ELEMENT,
    GEMM,
    MODES,
    PARTS,
    PHASES,
)
from shardwright.cost.tables.share_of_block_work_rerun_by_selective_recompute import (
    recomputed_share,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.block.block_program import (
    BlockProgram,
    KernelKind,
    Move,
    Phase,
    Recomputable,
    SavedTensor,
)
from shardwright.program.block.operators_rerun_by_runtime_recompute_modules import (
    recomputed_operators,
)
from shardwright.program.block.symbolic_sizes import Degrees, evaluate
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import FullRecompute, TpOverlap

Variant: TypeAlias = tuple[tuple[SavedTensor, ...], Runtime]
"""Tensors that a block saves for its backward under a runtime, and the runtime."""
Kernels: TypeAlias = dict[tuple[str, Phase], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSums:
    """Sums over the kernels and the kept tensors of a block; n = rows, v = variants.

    Args:
        seconds: (phases, parts, n) of kernels: F, I, W and those that a selective recompute runs
            again; with the additional seconds of GEMMs in pieces.
        again: (parts, v, n) of forward kernels that run again in backward.
        stops: (n,) seconds that a checkpoint of a whole layer leaves out.
        flops: (n,) of forward.
        saved_bytes, host_bytes: (modes, v, n) kept on the device and in host memory.
        output_bytes: (n,).
        by_operator: seconds of the kernels that communication may hide behind.
        core: of attention's cores.
        names: for each variant, operators that run again in backward.
        clock, pair: the kernels' sums for hosts and for pairs of microbatches.
    """

    seconds: FloatArray
    again: FloatArray
    stops: FloatArray
    flops: FloatArray
    saved_bytes: IntArray
    host_bytes: IntArray
    output_bytes: IntArray
    by_operator: Kernels
    core: dict[Phase, FloatArray]
    names: tuple[frozenset[str], ...]
    clock: HostClock
    pair: PairedLayer

    def at(self, rows: IntArray) -> BlockSums:
        """The sums of the given rows of degrees."""
        return _map_arrays(lambda values: values[..., rows], self)


def _map_arrays(
    change: Callable[..., FloatArray], first_sums: BlockSums, *other_sums: BlockSums
) -> BlockSums:
    """New sums whose arrays are `change` of the same array of all the given sums."""
    all_sums = (first_sums, *other_sums)

    def changed(name: str) -> FloatArray:
        """Result of `change` on the arrays `name` of all sums."""
        return change(*(getattr(block_sums_of, name) for block_sums_of in all_sums))

    return BlockSums(
        seconds=changed("seconds"),
        again=changed("again"),
        stops=changed("stops"),
        flops=changed("flops"),
        saved_bytes=changed("saved_bytes"),  # type: ignore[arg-type]
        host_bytes=changed("host_bytes"),  # type: ignore[arg-type]
        output_bytes=changed("output_bytes"),  # type: ignore[arg-type]
        by_operator={
            key: change(*(block_sums_of.by_operator[key] for block_sums_of in all_sums))
            for key in first_sums.by_operator
        },
        core={
            key: change(*(block_sums_of.core[key] for block_sums_of in all_sums))
            for key in first_sums.core
        },
        names=first_sums.names,
        clock=first_sums.clock.map_sums(
            change, *(block_sums_of.clock for block_sums_of in other_sums)
        ),
        pair=first_sums.pair.map_sums(
            change, *(block_sums_of.pair for block_sums_of in other_sums)
        ),
    )


def block_sums(
    program: BlockProgram,
    variants: tuple[Variant, ...],
    local: Degrees,
    *,
    machine: Machine,
    members: Callable[[Move], IntArray],
) -> BlockSums:
    """Sums over the kernels of `program` for every row, and saved bytes under each variant.

    See `block_table.block_tables`.

    Args:
        members: members of the groups of a move for which GEMMs are cut into pieces.
    """
    runtime, n = variants[0][1], np.shape(local["mbs"])[0]
    seconds, flops = np.zeros((len(PHASES), len(PARTS), n)), np.zeros(n)
    core = {Phase.F: np.zeros(n), Phase.I: np.zeros(n)}
    by_operator: Kernels = {}
    sixteen, unquantised = sixteen_bit_machine(machine), unquantised_operators(program)
    clock, pair = (
        HostClock(program, local, machine=machine, runtime=runtime),
        PairedLayer(program, rows=n),
    )
    run_again_names = tuple(
        [
            recomputed_operators(program.operators, under).again - program.constant
            for _, under in variants
        ]
    )
    run_again, recomputes = np.zeros((len(PARTS), len(variants), n)), program.has_backward
    for work in program.works:
        spent, count = work_seconds(
            work, local, sixteen if work.operator in unquantised else machine
        )
        clock.kernel(work, spent)
        pair.kernel(work.operator, work.phase, spent)
        part = PART_OF_KERNEL[work.kernel]
        seconds[PHASES.index(work.phase), part] += spent
        if work.phase is Phase.F:
            flops += count
            run_again[
                part, [work.operator in names_of_variant for names_of_variant in run_again_names]
            ] += spent
            seconds[3, part] += spent * recomputed_share(program, work, local, runtime) * recomputes
        if work.attention is not None:
            core[work.phase] += spent
        if work.one_pass:
            # A collective that ran beside the operator's GEMMs is waited for before.
            continue
        key = (work.operator, work.phase)
        by_operator[key] = by_operator[key] + spent if key in by_operator else spent
    gemms = linear_gemms(program)
    for move in program.moves:
        cut_gemm = gemm_cut_for(move, gemms)
        if cut_gemm is not None:
            machine_of_gemm, phase_index = (
                sixteen if cut_gemm.operator in unquantised else machine,
                PHASES.index(move.phase),
            )
            seconds[phase_index, GEMM] += cut_seconds(
                cut_gemm, local, machine_of_gemm, pieces=members(move)
            )
            if runtime.tp_overlap is TpOverlap.ASYNC and move.kind is Collective.REDUCE_SCATTER:
                seconds[phase_index, ELEMENT] += piece_sum_seconds(
                    move, local, machine, pieces=members(move)
                )
    stops = np.zeros(n)
    if runtime.full_recompute is FullRecompute.STOPS_EARLY:
        last_gemm = next(
            (
                w.operator
                for w in reversed(program.works)
                if w.kernel is KernelKind.GEMM and w.phase is Phase.F
            ),
            "",
        )
        stops = by_operator.get((last_gemm, Phase.F), stops)
    beside = {move.beside or move.operator for move in program.moves}
    saved_bytes, host_bytes = _saved_bytes([tensors for tensors, _ in variants], local)
    return BlockSums(
        seconds=seconds,
        again=run_again,
        stops=stops,
        flops=flops,
        saved_bytes=saved_bytes,
        host_bytes=host_bytes,
        output_bytes=evaluate(program.output_volume, local),
        by_operator={key: spent for key, spent in by_operator.items() if key[0] in beside},
        core=core,
        names=run_again_names,
        clock=clock,
        pair=pair,
    )


def _saved_bytes(
    variants: list[tuple[SavedTensor, ...]], degrees: Degrees
) -> tuple[IntArray, IntArray]:
    """(modes, variants, n) bytes that a microbatch keeps on the device, and in host memory.

    From forward to backward.
    """
    on_device, host = np.zeros(
        (2, len(MODES), len(variants), np.shape(degrees["mbs"])[0]), dtype=np.int64
    )
    holders: dict[SavedTensor, list[int]] = {}
    for number, tensors in enumerate(variants):
        for saved in tensors:
            holders.setdefault(saved, []).append(number)
    for saved, numbers in holders.items():
        volume, times = (
            evaluate(saved.volume, degrees),
            np.bincount(numbers, minlength=len(variants))[:, None],
        )
        if saved.dropped is not Recomputable.NONE_AND_FULL:
            on_device[0] += times * volume
        if saved.dropped is not Recomputable.SELECTIVE:
            (host if saved.host else on_device)[1] += times * volume
        if saved.dropped is Recomputable.NEVER and saved.parked is None:
            on_device[2] += times * volume
        elif saved.dropped is Recomputable.NEVER and saved.parked is not None:
            host[2] += times * evaluate(saved.parked, degrees)
    host[MODES.index("host")] = on_device[0]
    return on_device, host


_BITS: Final = {"mbs": 10, "tp": 10, "ring": 10, "ulysses": 10, "ep": 12, "etp": 10}
_MOST_KEPT_ROWS: Final = 4096
"""Rows of a block that are kept; sums of more are made each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistinctDegrees:
    """The distinct degrees among some rows, and the place of each row among them.

    Args:
        codes: one number for each, rising; None where they are too large for one.
        first: a row that has them.
        place: (rows,) index of each row's degrees.
    """

    codes: IntArray | None
    first: IntArray
    place: IntArray


def distinct_degrees(rows: DegreeRows) -> DistinctDegrees:
    """The distinct degrees of `rows`, with which symbolic sizes are evaluated."""
    all_rows = np.arange(len(rows))
    codes, degrees = np.zeros(len(rows), dtype=np.int64), rows.degrees()
    for name, bits in _BITS.items():
        if int(degrees[name].max(initial=0)) >> bits:
            return DistinctDegrees(codes=None, first=all_rows, place=all_rows)
        codes = (codes << bits) | degrees[name]
    distinct_codes, first_row, place = np.unique(codes, return_index=True, return_inverse=True)
    return DistinctDegrees(codes=distinct_codes, first=first_row, place=place.reshape(-1))


class CachedBlockSums:
    """Cache of one lowered block's sums for all degrees that occurred so far."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[IntArray, BlockSums] | None = None

    def for_rows(self, met: DistinctDegrees, make: Callable[[IntArray], BlockSums]) -> BlockSums:
        """Kernel sums of all rows `met`; call `make` only for degrees not cached.

        Args:
            make: computes the sums of some of the rows.
        """
        known_sums = self._known
        if (
            met.codes is None
            or len(met.codes) + (len(known_sums[0]) if known_sums else 0) > _MOST_KEPT_ROWS
        ):
            return make(met.first).at(met.place)
        missing = (
            _missing(met.codes, known_sums[0])
            if known_sums
            else np.ones(len(met.codes), dtype=np.bool_)
        )
        if missing.any():
            new_sums = make(met.first[missing])
            codes = np.concatenate([known_sums[0], met.codes[missing]]) if known_sums else met.codes
            order = np.argsort(codes)
            all_sums = (
                _map_arrays(lambda *parts: np.concatenate(parts, axis=-1), known_sums[1], new_sums)
                if known_sums
                else new_sums
            )
            # One assignment, so that whoever reads meanwhile has numbers that belong together.
            known_sums = self._known = (codes[order], all_sums.at(order))
        assert known_sums is not None
        return known_sums[1].at(np.searchsorted(known_sums[0], met.codes)[met.place])


def _missing(codes: IntArray, known: IntArray) -> BoolArray:
    """(codes,) True for codes, rising, that are not among the rising `known` ones."""
    places = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    is_missing: BoolArray = known[places] != codes
    return is_missing


def members_along(local: Degrees, move: Move) -> IntArray:
    """Members of a move's groups: the degree of its first axis (ep x etp for a coset)."""
    return local["ep"] * local["etp"] if move.axes[0] == "coset" else local[move.axes[0]]
