"""A rank's tokens under data and context parallelism, and the positions of the keys it reads."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shardwright.execute.native.device_meshes import mesh_dim
from shardwright.execute.native.ring_attention import Ring
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass
from shardwright.program.layout.device_parts_of_dims import token_box
from shardwright.program.layout.tensor_layout import Box, Indices
from shardwright.program.stages.stage_segments import StageParts


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTokens:
    """Samples and positions of every microbatch that a rank processes."""

    microbatches: int
    samples: Indices
    positions: Indices

    def take(self, batch: torch.Tensor) -> torch.Tensor:
        """Select this rank's samples and positions of every microbatch from a step's batch."""
        samples, positions = (
            index_tensor(local_indices, like=batch)
            for local_indices in (self.samples, self.positions)
        )
        return batch.unflatten(0, (self.microbatches, -1))[:, samples][:, :, positions].flatten(
            0, 1
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParallelism:
    """Positions of a rank's tokens and keys under context parallelism.

    By default every rank has the whole sequence.

    Args:
        own: positions of the rank's tokens, in order; empty = all positions.
        length: number of positions of the sequence.
        head_exchange_group: Ulysses ranks, which exchange heads for positions; None without.
        queries: positions of the queries after that exchange, in order.
        key_gather_group: ranks whose keys are gathered; None without.
        ring: ranks that pass keys around, with their positions; None without.
        keys: positions of all keys that arrive, in order.
    """

    own: Indices = ()
    length: int = 0
    head_exchange_group: dist.ProcessGroup | None = None
    queries: Indices = ()
    key_gather_group: dist.ProcessGroup | None = None
    ring: Ring | None = None
    keys: Indices = ()

    def positions(self, like: torch.Tensor) -> torch.Tensor:
        """Positions of the rank's tokens, as an index tensor on the device of `like`."""
        return index_tensor(self.own or ((0, like.shape[1]),), like=like)

    def sequence_length(self, like: torch.Tensor) -> int:
        """Number of positions of the whole sequence, of which `like` has the rank's part."""
        return self.length or like.shape[1]


WHOLE = ContextParallelism()


def rank_tokens(part: StageParts, *, rank: int, microbatches: int, length: int) -> RankTokens:
    """Samples of each microbatch, and positions, of a rank; equal in all stages of a grid."""
    samples, positions = _samples_and_positions(part, rank, length)
    return RankTokens(microbatches=microbatches, samples=samples, positions=positions)


def rank_context(
    part: StageParts, mesh: DeviceMesh | None, *, rank: int, length: int, gather: bool
) -> ContextParallelism:
    """Context parallelism of a rank from mesh dims ``ring`` and ``ulysses``; whole without a mesh.

    Without a mesh, sequences are whole.

    Args:
        gather: ranks of the ring gather all keys, instead of passing them round.
    """
    if mesh is None:
        return WHOLE
    ring, ulysses = mesh_dim(mesh, "ring"), mesh_dim(mesh, "ulysses")

    def positions_after_exchange(giver: int) -> Indices:
        """Positions of ring rank `giver` after Ulysses ranks exchange heads for positions."""
        return tuple(
            i
            for ulysses_rank in _ranks(ulysses, rank)
            for i in _samples_and_positions(part, ulysses_rank - rank + giver, length)[1]
        )

    positions_by_rank = tuple(
        positions_after_exchange(ring_rank) for ring_rank in _ranks(ring, rank)
    )
    return ContextParallelism(
        own=_samples_and_positions(part, rank, length)[1],
        length=length,
        head_exchange_group=ulysses.get_group() if ulysses is not None else None,
        queries=positions_after_exchange(rank),
        key_gather_group=ring.get_group() if ring is not None and gather else None,
        ring=Ring(ranks=ring.get_group(), positions_by_rank=positions_by_rank)
        if ring is not None and not gather
        else None,
        keys=tuple(i for positions in positions_by_rank for i in positions),
    )


def _ranks(mesh: DeviceMesh | None, rank: int) -> list[int]:
    """Ranks of a one-dimensional mesh in order, or this rank alone if `mesh` is None."""
    return mesh.mesh.tolist() if mesh is not None else [rank]


def _samples_and_positions(part: StageParts, rank: int, length: int) -> Box:
    """(sample intervals in a microbatch, position intervals) that a rank of the stage processes."""
    cells = part.segments[0].cells.cells[OperatorClass.EMBED]
    return token_box(cells[rank - part.base], samples=part.samples, length=length)
