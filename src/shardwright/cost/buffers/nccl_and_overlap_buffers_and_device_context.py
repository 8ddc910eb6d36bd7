"""Bytes outside the framework's allocator: NCCL and tensor-parallel buffers, device context."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.collectives.algorithm_registry import CALL_NCCL
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import TpOverlap
from shardwright.units import KIB, MIB

CHANNELS: Final = 16
"""Channels of a communicator inside a node.

Source: NCCL environment variables, NCCL_MIN_NCHANNELS to NCCL_MAX_NCHANNELS: 2 to 32, 16 to 24 on
NVSwitch nodes (assumed).
"""
CHANNEL_BYTES: Final = 4 * MIB + 4800 * KIB + 512 * KIB
"""Receive buffers of one channel: simple (NCCL_BUFFSIZE, 4 MiB), LL128 and LL.

Source: NCCL src/include/device.h (640 x 120 x 8 x 8 and 512 x 8 x 8 x 16 bytes; from memory).
"""
CONTEXT_BYTES: Final = 512 * MIB
"""A CUDA context with the kernels of a training framework loaded (assumed: nvidia-smi of an idle
PyTorch process shows 0.4 to 0.6 GiB)."""
OVERLAP_BUFFERS: Final = 8
"""Gathered activations that fused tensor-parallel overlap keeps registered: qkv, proj, fc1 and fc2,
forward and input gradient.

Source: Transformer Engine, initialize_ub (from memory).
"""


def context_bytes(problem: Problem) -> int:
    """Bytes of the device's context: CONTEXT_BYTES where NCCL runs, 0 elsewhere.

    The stated memory of a TPU is the part left to programs.
    """
    return CONTEXT_BYTES if _runs_nccl(problem) else 0


def _runs_nccl(problem: Problem) -> bool:
    """True if the runtime calls NCCL: by name, or as the library of the device's vendor."""
    library, vendor = problem.runtime.collective_library, problem.cluster.node.accelerator.vendor
    return library in CALL_NCCL or (library == "any" and vendor == "NVIDIA")


def communicator_bytes(problem: Problem, groups: IntArray) -> IntArray:
    """(n,) bytes of `groups` communicators' buffers: CHANNELS x CHANNEL_BYTES each; 0 without NCCL.

    Groups of more than one device count.

    Leaves out the trees' and the network's further connections, and communicators that are made and
    never used.

    Args:
        groups: (n,) number of groups that a device is in.
    """
    return groups * (CHANNELS * CHANNEL_BYTES if _runs_nccl(problem) else 0)


def overlap_buffer_bytes(problem: Problem, *, tokens: IntArray, stream_cut: BoolArray) -> IntArray:
    """(n,) bytes of buffers of tensor-parallel overlap; 0 unless it is fused and the stream cut.

    OVERLAP_BUFFERS x tokens x hidden x element.

    Args:
        tokens: tokens that a device's GEMMs work on.
        stream_cut: the residual stream is cut over the tensor-parallel group.
    """
    if problem.runtime.tp_overlap is not TpOverlap.FUSED:
        return np.zeros(len(tokens), dtype=np.int64)
    buffer_bytes = (
        OVERLAP_BUFFERS * tokens * problem.model.hidden * (problem.job.activation.bits // 8)
    )
    return np.where(stream_cut, buffer_bytes, 0)
