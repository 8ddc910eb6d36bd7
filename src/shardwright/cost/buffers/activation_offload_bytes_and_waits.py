"""Bytes of activations offloaded to host memory, and seconds that a layer waits for copies."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.program.block.block_program import BlockProgram, Recomputable
from shardwright.program.block.symbolic_sizes import Degrees, evaluate


def host_bytes(program: BlockProgram, degrees: Degrees) -> IntArray:
    """(n,) bytes of a block's activations of a microbatch that selective recompute keeps on host.

    From the forward to the backward.
    """
    offloaded_bytes = np.zeros(np.shape(degrees["mbs"])[0], dtype=np.int64)
    for saved in program.saved:
        if saved.host and saved.dropped is not Recomputable.SELECTIVE:
            offloaded_bytes += evaluate(saved.volume, degrees)
    return offloaded_bytes


def checkpoint_seconds(program: BlockProgram, degrees: Degrees, *, rate: float) -> FloatArray:
    """(n,) seconds that a fully recomputed layer waits for its input to go to the host and back.

        2 V / rate

    V: bytes of a device's own part, where members of a tensor-parallel group hold copies; it
    computes nothing meanwhile. Leaves out that parts are gathered over the group again, and that
    host memory which is not pinned takes longer.

    Source: DeepSpeed, runtime/activation_checkpointing/checkpointing.py (`partition_activations`,
    `gather_partitioned_activations`).
    """
    seconds = np.zeros(np.shape(degrees["mbs"])[0])
    for saved in program.saved:
        if saved.parked is not None:
            seconds += 2.0 * evaluate(saved.parked, degrees) / rate
    return seconds


def waited_for_host(volume: IntArray, *, rate: float, seconds: FloatArray) -> FloatArray:
    """(n,) seconds that `volume` bytes take to and from the host beyond a layer's pass `seconds`.

    Each way runs beside the kernels of its pass, one layer's behind another's: max(V / rate - F, 0)
    + max(V / rate - I - W - R, 0). Both waits are counted in backward. Leaves out that copies take
    device memory's bandwidth, and devices that share a link of the host.

    Source: JAX, `save_and_offload_only_these_names`: copies to ``pinned_host`` are asynchronous
    operations of the schedule.
    """
    spent = volume / rate
    forward, backward = seconds[0].sum(axis=0), seconds[1:4].sum(axis=(0, 1))
    waited: FloatArray = np.maximum(spent - forward, 0.0) + np.maximum(spent - backward, 0.0)
    return np.where(volume > 0, waited, 0.0)


def waited_for_layers(volume: IntArray, *, rate: float, beside: FloatArray) -> FloatArray:
    """(2, c) seconds a chunk's passes wait to offload `volume` bytes: max(V / rate - beside, 0).

    max(V / rate - `beside`, 0): copies are spread evenly over all layers of the chunk, as many
    layers' kernels to each as there are. Copied bytes are waited for in pinned memory; leaves out
    that copies take device memory's bandwidth, devices that share a link of the host, and whether
    the host's memory suffices.

    Source: Transformer Engine, pytorch/cpu_offload.py,
    `AsyncDoubleBufferGroupOffloadHandler.layer_window_map`.
    """
    return np.where(volume > 0, np.maximum(volume / rate - beside, 0.0), 0.0)
