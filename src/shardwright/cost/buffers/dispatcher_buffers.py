"""Buffers of token dispatchers (DeepEP, HybridEP, all-gather), which live through the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from shardwright.arrays import IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.block.block_program import BlockProgram, Move, Phase
from shardwright.program.block.local_token_and_tensor_sizes import DEEPEP_PEERS
from shardwright.program.block.symbolic_sizes import Degrees, evaluate
from shardwright.units import MIB

CHANNELS: Final = 10
"""Channels of DeepEP: a pair of its 20 multiprocessors each."""
SLOT_BYTES: Final = 128 * 8 + 128 * 4 + 128 * 4 + 8
"""Bytes beside a token in a buffer of DeepEP: room for 128 chosen experts, their weights, 128
scales, and the token's source."""
CHUNKS: Final = ((8, 256), (64, 288), (96, 480), (128, 560))
"""(devices, tokens) that a channel's buffer holds for each NVLink peer in groups of at most so
many; 720 in larger ones."""
REMOTE_CHUNK: Final = 128
"""Tokens that a channel's buffer holds for each node, sent and received apart."""


ELEMENT: Final = 2
"""Bytes of an element in both libraries' buffers, whose dispatch is in 16 bits here."""


def dispatch_buffers(
    program: BlockProgram,
    degrees: Degrees,
    *,
    spans: Callable[[Move], tuple[Span, ...]],
    island: int,
    hybrid: bool,
) -> IntArray:
    """(2, n) bytes that a token dispatcher keeps: outside and inside the framework's allocator.

    They live through the step.

    Beside copies of tokens HybridEP gathers the map of their experts, in a buffer of its own.
    """
    library = _library_buffers(program, degrees, spans=spans, island=island, hybrid=hybrid)
    gathered = _gathered_tokens_bytes(program, degrees)
    copied = [move for move in program.moves if move.copies]
    return np.stack(
        [library + gathered, np.zeros_like(gathered)] if copied else [library, gathered]
    )


def _gathered_tokens_bytes(program: BlockProgram, degrees: Degrees) -> IntArray:
    """(n,) bytes of the largest forward all-gather of tokens over expert groups; one buffer.

    (``use_global_buffer``, token_dispatcher.py).
    """
    largest = np.zeros(np.shape(degrees["mbs"])[0], dtype=np.int64)
    for move in program.moves:
        if move.axes[0] == "coset" and move.kind is Collective.ALL_GATHER and move.phase is Phase.F:
            largest = np.maximum(
                largest,
                sum((evaluate(size, degrees) for size in move.volume), np.zeros_like(largest)),
            )
    return largest


def _library_buffers(
    program: BlockProgram,
    degrees: Degrees,
    *,
    spans: Callable[[Move], tuple[Span, ...]],
    island: int,
    hybrid: bool,
) -> IntArray:
    """(n,) bytes of a DeepEP or HybridEP dispatcher's buffers; 0 where the program has none.

    Outside the framework's allocator. These dispatchers send a token once.

    Leaves out flags and counts, and the further bytes of a group of several tensor-parallel members
    (etp).

    Args:
        spans: how the (n,) groups of each move lie.
        island: devices of one island.
        hybrid: the library is HybridEP (`is_hybrid`).
    """
    largest = np.zeros(np.shape(degrees["mbs"])[0], dtype=np.int64)
    experts = {o.name: o for o in program.operators if o.experts is not None}
    for move in program.moves:
        expert = experts.get(move.operator)
        if not move.copies or move.phase is not Phase.F or expert is None or expert.experts is None:
            continue
        members = np.asarray(spans(move)[0].size, dtype=np.int64)
        width = max((e.size for e in expert.reads if e.dim is Dim.HIDDEN), default=1)
        tokens = sum((evaluate(size, degrees) for size in move.volume), np.zeros_like(largest)) // (
            move.copies * width * ELEMENT
        )
        if not hybrid:
            buffer_bytes = deep_ep_bytes(members, hidden=width)
        else:
            buffer_bytes = hybrid_ep_bytes(
                members, tokens=tokens, hidden=width, experts=expert.experts.experts, island=island
            )
        largest = np.maximum(largest, np.where((members > 1) & (tokens > 0), buffer_bytes, 0))
    return largest


def deep_ep_bytes(members: IntArray, *, hidden: int) -> IntArray:
    """(n,) bytes of DeepEP's buffers over NVLink, and over the network for larger groups.

    Over NVLink, and twice over nodes.

    Source: DeepEP, csrc/config.hpp at 030cdf0ad453 (get_nvl_buffer_size_hint,
    get_rdma_buffer_size_hint) and the chunks of get_dispatch_config in buffer.py; Megatron-Core
    asks for just these (fused_a2a.py at 02ad939ba9d1: get_buffer).
    """
    slot = hidden * ELEMENT + SLOT_BYTES
    chunk = np.full_like(members, 720)
    for devices, tokens in reversed(CHUNKS):
        chunk = np.where(members <= devices, tokens, chunk)
    nvlink_bytes = CHANNELS * np.minimum(members, DEEPEP_PEERS) * chunk * slot
    network_bytes = 2 * CHANNELS * (members // DEEPEP_PEERS) * REMOTE_CHUNK * (slot + 16) + MIB
    buffers: IntArray = nvlink_bytes + np.where(members > DEEPEP_PEERS, network_bytes, 0)
    return buffers


def hybrid_ep_bytes(
    members: IntArray, *, tokens: IntArray, hidden: int, experts: int, island: int
) -> IntArray:
    """(n,) bytes of HybridEP's buffers: room for all tokens of the expert-parallel group.

    As if one device received them all, with the weights of its node's experts.

    One such buffer where the group lies in an island, which dispatch and combine share; else two,
    and three for other nodes' tokens. Source: DeepEP, csrc/hybrid_ep/hybrid_ep.cu at 017a52022404
    (allocate_buffer_for_dispatch, allocate_buffer_for_combine).
    """
    nodes = -(-members // island)
    # Tokens in 16 bits, weights in 32.
    token = hidden * ELEMENT + -(-experts // nodes) * 4
    shared = tokens * members * token
    over_nodes = 2 * shared + 3 * tokens * (nodes - 1) * token
    buffers: IntArray = np.where(nodes > 1, over_nodes, shared)
    return buffers
