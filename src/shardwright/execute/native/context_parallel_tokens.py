"""Tokens of a batch that a rank has, and other tokens that its attention reads."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shardwright.execute.native.device_meshes import dim
from shardwright.execute.native.ring_attention import Ring
from shardwright.execute.numerics.base.local_tensors import index_tensor
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass
from shardwright.program.layout.device_cells import token_box
from shardwright.program.layout.tensor_layout import Box, Indices
from shardwright.program.stages.stage_segments import StageParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of a rank: of every microbatch these samples, of every sequence these positions."""

    microbatches: int
    samples: Indices
    positions: Indices

    def of(self, batch: torch.Tensor) -> torch.Tensor:
        """(samples, positions) of the rank, by microbatch,
        of all samples and positions of a step.
        """
        samples, positions = (
            index_tensor(taken, like=batch) for taken in (self.samples, self.positions)
        )
        return batch.unflatten(0, (self.microbatches, -1))[:, samples][:, :, positions].flatten(
            0, 1
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Positions of a rank's tokens and of those that its attention sees. By default a sequence is
    whole on every rank.

    Args:
        own: positions of the rank's tokens, in order; empty where it has all.
        length: of the sequence.
        traders: ranks that give heads for positions, None without such;
        queries: positions of the queries behind that, in order.
        givers: ranks whose keys are gathered, None without such;
        ring: ranks that keys are passed round, with their positions, None without such.
        keys: positions of all keys that come, in order.
    """

    own: Indices = ()
    length: int = 0
    traders: dist.ProcessGroup | None = None
    queries: Indices = ()
    givers: dist.ProcessGroup | None = None
    ring: Ring | None = None
    keys: Indices = ()

    def positions(self, like: torch.Tensor) -> torch.Tensor:
        """Positions of the rank's tokens, on the device of `like`: (samples, positions, ..)."""
        return index_tensor(self.own or ((0, like.shape[1]),), like=like)

    def whole(self, like: torch.Tensor) -> int:
        """Positions of the sequence, of which `like` has the rank's."""
        return self.length or like.shape[1]


WHOLE = Context()


def tokens_of(part: StageParts, *, rank: int, microbatches: int, length: int) -> Tokens:
    """Tokens of a rank of a stage; all stages of a grid have the same."""
    samples, positions = _box(part, rank, length)
    return Tokens(microbatches=microbatches, samples=samples, positions=positions)


def context_of(
    part: StageParts, mesh: DeviceMesh | None, *, rank: int, length: int, gather: bool
) -> Context:
    """The context of a rank of a stage, from the mesh's ``ring`` and ``ulysses``; None: sequences
    are whole.

    Args:
        gather: ranks of the ring gather all keys, instead of passing them round.
    """
    if mesh is None:
        return WHOLE
    ring, ulysses = dim(mesh, "ring"), dim(mesh, "ulysses")

    def traded(giver: int) -> Indices:
        """Positions of a rank of the ring once heads were traded."""
        return tuple(
            i
            for trader in _ranks(ulysses, rank)
            for i in _box(part, trader - rank + giver, length)[1]
        )

    dealt = tuple(traded(giver) for giver in _ranks(ring, rank))
    return Context(
        own=_box(part, rank, length)[1],
        length=length,
        traders=ulysses.get_group() if ulysses is not None else None,
        queries=traded(rank),
        givers=ring.get_group() if ring is not None and gather else None,
        ring=Ring(ranks=ring.get_group(), dealt=dealt) if ring is not None and not gather else None,
        keys=tuple(i for positions in dealt for i in positions),
    )


def _ranks(mesh: DeviceMesh | None, rank: int) -> list[int]:
    return mesh.mesh.tolist() if mesh is not None else [rank]


def _box(part: StageParts, rank: int, length: int) -> Box:
    """Samples of a microbatch and positions of what is cut by dp and cp alone."""
    cells = part.segments[0].cells.cells[OperatorClass.EMBED]
    return token_box(cells[rank - part.base], samples=part.samples, length=length)
