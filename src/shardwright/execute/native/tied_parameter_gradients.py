"""Tied embedding and head in different stages: both keep a copy, and steps sum their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from shardwright.execute.device_state.stored_parameter_parts import Key, origin
from shardwright.execute.native.decoder_stage_as_torch_modules import NativeStage
from shardwright.execute.native.private_torch_api import local_shard
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.stages.stage_segments import StageParts


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedCopies:
    """This rank's copies of a parameter that the first and the last stage share.

    Args:
        first, last: the copies; None where the rank does not have that stage.
        peer_rank: the rank of the pipeline that has the other copy, if this rank has one.
    """

    first: nn.Parameter | None
    last: nn.Parameter | None
    peer_rank: int

    @property
    def local_copies(self) -> tuple[nn.Parameter, ...]:
        """Copies of the tied parameter (embedding, head) in this rank's stages."""
        return tuple(p for p in (self.first, self.last) if p is not None)


def tied_keys(model: Model) -> frozenset[Key]:
    """Keys of the parameters that two operators share, such as embedding and head."""
    return frozenset(
        origin(model, run, 0, operator, parameter).key
        for run, run_of_model in enumerate(model.runs)
        for operator in model.blocks[run_of_model.block].operators
        for parameter in operator.parameters
        if parameter.tied_to
    )


def tied_copies(
    model: Model,
    stages: Sequence[NativeStage],
    local_parts: Sequence[StageParts],
    parts: Sequence[StageParts],
    *,
    rank: int,
) -> tuple[TiedCopies, ...]:
    """This rank's copies of parameters that the first and last stage share; () with one stage.

    Args:
        local_parts: layout of each of `stages`.
        parts: layouts of all stages, in order.
    """
    ends = parts[0], parts[-1]
    if len(parts) == 1:
        return ()
    copies = []
    for key in sorted(tied_keys(model)):
        first, last = (
            next(_parameters_with_key(key, stages, local_parts, end), None) for end in ends
        )
        if first is None and last is None:
            continue
        stage_here, other_stage = ends if first is not None else reversed(ends)
        # Ranks of both stages with the same coordinates in tp and dp have the same elements.
        copies.append(
            TiedCopies(
                first=first,
                last=last,
                peer_rank=other_stage.devices[stage_here.devices.index(rank)],
            )
        )
    return tuple(copies)


def _parameters_with_key(
    key: Key, stages: Sequence[NativeStage], local_parts: Sequence[StageParts], end: StageParts
) -> Iterator[nn.Parameter]:
    """Iterate over the parameters with a key in this rank's chunk of one end of the pipeline."""
    for stage, part in zip(stages, local_parts, strict=True):
        if part.chunk == end.chunk:
            yield from (
                stage.get_parameter(name)
                for name, name_key, _ in stage.parameter_keys()
                if name_key == key
            )


def sum_tied_gradients(
    shared: Sequence[TiedCopies], gradient_of: Mapping[int, torch.Tensor]
) -> None:
    """Set the gradients of all copies to their sum; all ranks call it after the last backward pass.

    Args:
        gradient_of: gradient by the identity of its parameter, sharded like the parameter.
    """
    for copies in shared:
        gradients = [local_shard(gradient_of[id(p)]) for p in copies.local_copies]
        if len(copies.local_copies) == 2:
            total = gradients[0] + gradients[1]
        else:
            (local_gradient,) = gradients
            received = torch.empty_like(local_gradient)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, local_gradient.contiguous(), copies.peer_rank),
                    dist.P2POp(dist.irecv, received, copies.peer_rank),
                ]
            )
            for work in works:
                work.wait()
            total = local_gradient + received
        for gradient in gradients:
            gradient.copy_(total)
