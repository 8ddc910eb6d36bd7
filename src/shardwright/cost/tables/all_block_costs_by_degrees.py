"""Tables that bounds and plan prices read: blocks over layer rows, synchronisation over meshes."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray, distinct
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.buffers.logits_buffers import logits_bytes, loss_of
from shardwright.cost.buffers.nccl_and_overlap_buffers_and_device_context import (
    overlap_buffer_bytes,
)
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.cost.network.disable_fused_overlap_beyond_nvlink import without_fused_overlap
from shardwright.cost.network.exposed_and_hidden_seconds_of_block_collective import (
    least_move_seconds,
)
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    Network,
    all_alike,
    border_seconds,
    least_seconds,
    network_of,
    spans_along,
)
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.part_phase_recompute_keys import MODES, PARTS, PHASES
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import block_problem, on_one_node
from shardwright.cost.tables.block_kernel_sums import (
    BlockSums,
    CachedBlockSums,
    Variant,
    block_sums,
    distinct_degrees,
    members_along,
)
from shardwright.cost.tables.block_layer_mesh_table_classes import (
    OF_BLOCKS,
    BlockVariantTable,
    LayerTable,
)
from shardwright.cost.tables.block_table import block_tables, local_degrees
from shardwright.cost.tables.pipeline_chunk_layout import block_facts
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.program.block.block_program import BlockProgram, Move
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.saved_tensors import saved_tensors_of_contexts
from shardwright.program.block.symbolic_sizes import Degrees
from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.framework_description import Options


def layer_table(
    problem: Problem, rows: DegreeRows, *, modules: tuple[Options, ...] = ((),)
) -> LayerTable:
    """Seconds and bytes of every block for all rows, repeated for each option set in `modules`.

    Rows of one structure are priced together.

    Args:
        modules: sets of options that say which modules run again in backward; the table has all
            rows under the first, then all under the second, and so on.
    """
    network = network_of(problem.cluster, library=problem.runtime.collective_library)
    machine = problem_machine(on_one_node(problem))
    blocks, num_rows, sets = len(problem.model.blocks), len(rows), len(modules)
    modes = (len(MODES),)
    shapes = {
        "seconds": (len(PHASES), len(PARTS)),
        "saved_bytes": modes,
        "host_bytes": modes,
        "buffer_bytes": (2,),
    }
    columns = {
        name: np.zeros(
            (blocks, *shapes.get(name, ()), sets, num_rows),
            dtype=np.int64 if name.endswith("_bytes") else float,
        )
        for name in OF_BLOCKS
    }
    facts = block_facts(problem.model)
    streams, teachers = (
        np.zeros((int(facts.stream.max()) + 1, num_rows), dtype=np.int64),
        np.zeros(num_rows, dtype=np.int64),
    )
    for rows_alike in _alike_groups(problem, rows, network):
        one_node = on_one_node(problem if rows_alike.within else without_fused_overlap(problem))
        problems_of_sets = [under(one_node, options) for options in modules]
        shared_values, places = (
            _SharedOverRows(problem, rows.take(rows_alike.places), network),
            _as_slice(rows_alike.places),
        )
        for index, block in enumerate(one_node.model.blocks):
            lowered = _lowered_block(
                tuple(
                    [
                        Same(block_problem(problem_of_set, block))
                        for problem_of_set in problems_of_sets
                    ]
                ),
                Same(block),
                rows_alike.structure,
            )
            local = shared_values.local(lowered.tokens)
            table = block_tables(
                lowered.program,
                lowered.variants,
                local=local,
                spans=shared_values.spans,
                machine=machine,
                network=network,
                wait_s=problem.constants.collective_wait_s,
                host_rate=problem.cluster.node.host.pcie.achieved,
                sums=lowered.sums.for_rows(
                    shared_values.met,
                    partial(_kernel_sums_of_rows, lowered, local, machine=machine),
                ),
                moved=partial(shared_values.moved, tokens=lowered.tokens),
            )
            for name, values in _columns_by_module_set(table).items():
                columns[name][index][..., places] = values
            stream_bytes = streams[facts.stream[index]] if facts.stream[index] >= 0 else teachers
            stream_bytes[rows_alike.places] = np.maximum(
                stream_bytes[rows_alike.places], table.output_bytes
            )
    logits, logits_blocks = _logits_bytes(problem, rows)
    buffers = overlap_buffer_bytes(
        problem,
        tokens=rows["mbs"] * -(-problem.job.sequence_length // rows["cp"]),
        stream_cut=_surely_in_island(rows, network) & (rows["tp"] > 1) & (rows["sp"] == 1),
    )
    return LayerTable(
        **{
            name: values.reshape(*values.shape[:-2], sets * num_rows)
            for name, values in columns.items()
        },
        logits_bytes=np.tile(logits, len(modules)),
        logits_blocks=np.tile(logits_blocks, len(modules)),
        overlap_buffers=np.tile(buffers, len(modules)),
        border=np.stack(
            [
                np.tile(
                    _border_seconds(problem, rows, np.maximum(stream, teachers), network),
                    len(modules),
                )
                for stream in streams
            ]
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoweredBlock:
    """A block lowered under one structure, with one variant for each set of recomputed modules.

    Args:
        tokens: of a sample of its sequence.
        sums: of its kernels, as far as they are known.
    """

    program: BlockProgram
    variants: tuple[Variant, ...]
    tokens: int
    sums: CachedBlockSums


@lru_cache(maxsize=256)
def _lowered_block(
    problems: tuple[Same[Problem], ...], block: Same[Block], structure: Structure
) -> _LoweredBlock:
    """Lower a block under problems that differ in the modules that run again in backward."""
    operators = {o.name: o for o in block.value.operators}
    contexts = [block_context(keyed_problem.value, block.value) for keyed_problem in problems]
    saved = saved_tensors_of_contexts(block.value, operators, structure, contexts)
    return _LoweredBlock(
        program=lower_block(block.value, structure, contexts[0]),
        variants=tuple(
            zip(saved, [keyed_problem.value.runtime for keyed_problem in problems], strict=True)
        ),
        tokens=contexts[0].tokens,
        sums=CachedBlockSums(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowsAlike:
    """Rows of one structure whose groups lie the same way.

    Args:
        places: of the rows.
        within: their tensor-parallel groups lie in an island.
    """

    places: IntArray
    structure: Structure
    within: bool


def _alike_groups(problem: Problem, rows: DegreeRows, network: Network) -> list[_RowsAlike]:
    """Divide the rows into groups of one block structure whose process groups lie alike."""
    routed = (rows["sp"] == 1) | (rows["tp"] == 1)
    keys = {
        o.attention.kv_heads
        for b in problem.model.blocks
        for o in b.operators
        if o.attention is not None
    }
    shares_keys = (rows["ulysses"] > 1) & np.all(
        [rows["tp"] % heads == 0 for heads in keys], axis=0
    )
    flags = np.stack(
        [
            rows["sp"],
            rows["gather"],
            routed,
            shares_keys,
            _tensor_groups_in_island(rows, network),
            all_alike(rows, network),
        ]
    )
    code = (1 << np.arange(len(flags))) @ flags
    groups = []
    for number in distinct(code).tolist():
        sp, gather, route, one_key, within, _ = (
            bool(number >> bit & 1) for bit in range(len(flags))
        )
        structure = Structure(
            sequence_parallel=sp, gather=gather, routed=route, shared_keys=one_key
        )
        groups.append(
            _RowsAlike(places=np.flatnonzero(code == number), structure=structure, within=within)
        )
    return groups


def _kernel_sums_of_rows(
    lowered: _LoweredBlock, local: Degrees, chosen: IntArray, *, machine: Machine
) -> BlockSums:
    """Kernel sums of a lowered block for the chosen rows."""
    sizes = {name: values[chosen] for name, values in local.items()}
    return block_sums(
        lowered.program,
        lowered.variants,
        sizes,
        machine=machine,
        members=partial(members_along, sizes),
    )


def tensor_groups_inside(rows: DegreeRows, *, island: int) -> BoolArray:
    """(n,) True where all tensor-parallel groups of a mesh lie in one NVLink island each.

    They divide the islands, or the whole mesh lies in one.

    Where an island's end is no end of a run of groups, it cuts one of them.
    """
    tp = rows["tp"]
    inside: BoolArray = (
        (tp == 1)
        | (island % (tp * rows["s_tp"]) == 0)
        | (tp * rows["cp"] * rows["dp"] * rows["pp"] <= island)
    )
    return inside


def _tensor_groups_in_island(rows: DegreeRows, network: Network) -> BoolArray:
    """(n,) True where the plan's tensor-parallel groups lie in an NVLink island each."""
    return (
        rows["within"] > 0
        if "within" in rows.columns
        else tensor_groups_inside(rows, island=network.tiers[0].num_devices)
    )


def _surely_in_island(rows: DegreeRows, network: Network) -> BoolArray:
    """(n,) True where tp groups lie in an island in every mesh that a partial row stands for.

    Stricter than `_tensor_groups_in_island` for rows of a part of a mesh, so that bytes stay a
    lower bound.
    """
    return (
        rows["within"] > 0
        if "within" in rows.columns
        else network.tiers[0].num_devices % (rows["tp"] * rows["s_tp"]) == 0
    )


class _SharedOverRows:
    """Values that the blocks of a model share over some rows, computed once.

    Their degrees, how their groups lie, and seconds of equal moves.
    """

    def __init__(self, problem: Problem, rows: DegreeRows, network: Network) -> None:
        self._rows, self._network = rows, network
        self._local: dict[int, Degrees] = {}
        self._spans: dict[str, tuple[Span, ...]] = {}
        self._moved: dict[tuple[object, int], FloatArray] = {}
        self.met = distinct_degrees(rows)

    def local(self, tokens: int) -> Degrees:
        """Degrees and sizes (n,) that evaluate a block with `tokens` tokens a sample (cached)."""
        if tokens not in self._local:
            self._local[tokens] = local_degrees(self._rows, sequence=tokens)
        return self._local[tokens]

    def spans(self, move: Move) -> tuple[Span, ...]:
        """Network spans that a move's groups may have along its first axis, by row (cached)."""
        axis = move.axes[0]
        if axis not in self._spans:
            self._spans[axis] = spans_along(axis, self._rows, self._network)
        return self._spans[axis]

    def moved(self, move: Move, *, tokens: int) -> FloatArray:
        """(n,) least seconds of a move of a block with `tokens` tokens a sample (cached)."""
        key = (_move_key(Same(move)), tokens)
        if key not in self._moved:
            self._moved[key] = least_move_seconds(
                move, degrees=self.local(tokens), spans=self.spans, network=self._network
            )
        return self._moved[key]


@lru_cache(maxsize=8192)
def _move_key(move: Same[Move]) -> object:
    """One object for all moves that send the same bytes along the same axis."""
    moved = move.value
    return _object_of(
        (moved.kind, moved.volume, moved.axes[0], moved.copies, moved.rows, moved.groups)
    )


@lru_cache(maxsize=8192)
def _object_of(content: tuple[object, ...]) -> object:
    """One unique placeholder object for each distinct content (cached by equality)."""
    return object()


def _as_slice(places: IntArray) -> IntArray | slice:
    """Rising `places` as a slice if they are consecutive numbers, else as given."""
    first_place, last_place = int(places[0]), int(places[-1])
    return (
        slice(first_place, last_place + 1)
        if last_place - first_place + 1 == len(places)
        else places
    )


def _columns_by_module_set(table: BlockVariantTable) -> dict[str, FloatArray | IntArray]:
    """Columns of a block table, each with an axis of recomputed-module sets before the rows."""
    return {
        "seconds": table.seconds,
        "saved_bytes": table.saved_bytes,
        "host_bytes": table.host_bytes,
        "transient_bytes": table.saved_bytes[0],
        "flops": table.flops[None],
        "overlappable": table.overlappable[None],
        "buffer_bytes": table.buffer_bytes[:, None],
    }


def _border_seconds(
    problem: Problem, rows: DegreeRows, stream: IntArray, network: Network
) -> FloatArray:
    """(tiers, n) seconds to send a device's part of `stream` bytes to the next stage, by tier.

    Copies over tp are sent once and gathered behind, if the runtime does so.
    """
    copied = (rows["sp"] == 0) & (rows["tp"] > 1)
    if not problem.runtime.p2p_scatter_gather or not copied.any():
        return border_seconds(rows, network, volume=stream.astype(np.float64))
    sent = np.where(copied, -(-stream // rows["tp"]), stream)
    lying = spans_along("tp", rows, network)
    gathered = least_seconds(
        Collective.ALL_GATHER, volume=stream.astype(np.float64), spans=lying, network=network
    )
    return border_seconds(rows, network, volume=sent.astype(np.float64)) + np.where(
        copied, gathered, 0.0
    )


def _logits_bytes(problem: Problem, rows: DegreeRows) -> tuple[IntArray, IntArray]:
    """(n,) peak bytes of logits of every row, and of their allocator blocks.

    Of the tokens of a microbatch of a member of cp, ceil(vocab / tp) words.
    """
    loss, tokens = (
        loss_of(problem.model),
        rows["mbs"] * -(-problem.job.sequence_length // rows["cp"]),
    )
    if loss is None:
        return np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    width = -(-problem.model.vocab // rows["tp"])
    return logits_bytes(
        loss,
        problem.runtime,
        tokens=tokens,
        local_vocabulary=width,
        split=rows["tp"] > 1,
        hidden=problem.model.hidden,
    )
