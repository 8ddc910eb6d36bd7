"""Tables as data: columns of seconds and bytes of blocks, layers and meshes, one entry a row."""

from __future__ import annotations

from typing import Final

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.gradients.layer_synchronisation_table_classes import SyncTable
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """A block's seconds and bytes as columns, one entry for each of n degree rows.

    Args:
        seconds: shape (phases, parts, n): F, I, W and the seconds that recompute adds, by part.
        saved_bytes: shape (modes, n): bytes that one microbatch keeps on the device from F to
            backward under none, selective, full recompute, and where all of it waits in host
            memory: nothing.
        host_bytes: shape (modes, n): bytes that it keeps in host memory meanwhile.
        transient_bytes: shape (n,): the largest set alive inside one layer's backward after a full
            recompute.
        flops: shape (n,): FLOPs of forward GEMMs, attention (under the mask) and scans on one
            device.
        overlappable: shape (n,): seconds of communication that compute hides, forward and backward.
        buffer_bytes: shape (2, n): see `dispatcher_buffers.dispatch_buffers`.
        output_bytes: shape (n,): the block's output on one device as it crosses a pipeline border.
    """

    block: str
    seconds: FloatArray
    saved_bytes: IntArray
    host_bytes: IntArray
    transient_bytes: IntArray
    flops: FloatArray
    overlappable: FloatArray
    buffer_bytes: IntArray
    output_bytes: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockVariantTable:
    """A block's seconds and bytes under several variants of recomputed modules.

    A `BlockTable` with an axis of v variants before the rows where they differ.

    Args:
        seconds: (phases, parts, v, n).
        saved_bytes, host_bytes: (modes, v, n).
        flops, overlappable, output_bytes: (n,).
        buffer_bytes: (2, n).
    """

    seconds: FloatArray
    saved_bytes: IntArray
    host_bytes: IntArray
    flops: FloatArray
    overlappable: FloatArray
    buffer_bytes: IntArray
    output_bytes: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """Seconds and bytes of all blocks of the model over n layer rows; first axis = block.

    Args:
        seconds: (blocks, phases, parts, n).
        saved_bytes, host_bytes: (blocks, modes, n) kept on the device and in host memory.
        transient_bytes, flops: (blocks, n).
        buffer_bytes: (blocks, 2, n), see `dispatcher_buffers.dispatch_buffers`.
        logits_bytes: (n,) peak of logits and their copies in the head.
        logits_blocks: (n,) the allocator's blocks of them.
        overlap_buffers: (n,) bytes of tensor-parallel overlap outside the allocator.
        border: (streams, tiers, n) seconds of one send across a tier, of each of the model's
            streams (`pipeline_chunk_layout.BlockFacts`): of a teacher's where that takes longer.
    """

    seconds: FloatArray
    saved_bytes: IntArray
    host_bytes: IntArray
    transient_bytes: IntArray
    flops: FloatArray
    overlappable: FloatArray
    buffer_bytes: IntArray
    logits_bytes: IntArray
    logits_blocks: IntArray
    overlap_buffers: IntArray
    border: FloatArray


OF_BLOCKS: Final = (
    "seconds",
    "saved_bytes",
    "host_bytes",
    "transient_bytes",
    "flops",
    "overlappable",
    "buffer_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTable:
    """Seconds and bytes of synchronisation and its side costs over n mesh rows.

    Args:
        sync: per block.
        norm_s: (n,) seconds of the scalar all_reduce of gradient clipping over all devices.
        slowdown: (n,) factor on kernels beside a layer's gather or reduction.
        shares: (2, tiers, n) see `price_layer_synchronisation_on_grids.link_shares`.
        gather_copy_s, regather_copy_s, reduce_copy_s: (blocks, n) seconds of copies around one
            layer's gathers and reduction (`sharding_copies_and_overlap_slowdown`).
        host_gradient_s: (blocks, n) seconds of copies of its reduced gradients between device and
            host, all states offloaded.
        scales_s: (n,) seconds that each pass of a chunk waits for its scales (see
            `fp8_scale_reductions`).
        gradient_bytes: (n,) traffic an element of passes over all local gradients at the step's end
            (`Runtime.gradient_passes`).
        table_bytes: (blocks, n) temporary of the weight gradient of the block's largest trained
            table: an embedding or a head.
        communicator_bytes: (n,) buffers of the communicators, outside the allocator.
    """

    sync: SyncTable
    norm_s: FloatArray
    slowdown: FloatArray
    shares: FloatArray
    gather_copy_s: FloatArray
    regather_copy_s: FloatArray
    reduce_copy_s: FloatArray
    host_gradient_s: FloatArray
    scales_s: FloatArray
    gradient_bytes: IntArray
    table_bytes: IntArray
    communicator_bytes: IntArray
