"""A head whose weight is the embedding's, in another stage: both keep it, and each step adds up the
gradients of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from shardwright.execute.device_state.device_parameters import Key, origin
from shardwright.execute.native.decoder_module import Stage
from shardwright.execute.native.torch_private import local
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.stages.stage_segments import StageParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """This rank's copies of a parameter that the first stage and the last have.

    Args:
        first, last: None where the rank has not that stage.
        elsewhere: the rank of the pipeline that has the other, where this has one.
    """

    first: nn.Parameter | None
    last: nn.Parameter | None
    elsewhere: int

    @property
    def here(self) -> tuple[nn.Parameter, ...]:
        """The copies on this rank."""
        return tuple(p for p in (self.first, self.last) if p is not None)


def tied_keys(model: Model) -> frozenset[Key]:
    """Parameters that some other operator has, too."""
    return frozenset(
        origin(model, run, 0, operator, parameter).key
        for run, one in enumerate(model.runs)
        for operator in model.blocks[one.block].operators
        for parameter in operator.parameters
        if parameter.tied_to
    )


def copies(
    model: Model,
    stages: Sequence[Stage],
    mine: Sequence[StageParts],
    parts: Sequence[StageParts],
    *,
    rank: int,
) -> tuple[Copies, ...]:
    """The copies that this rank's stages have of parameters of both ends of a pipeline.

    Args:
        mine: of `stages`.
        parts: of all stages, in order.
    """
    ends = parts[0], parts[-1]
    if len(parts) == 1:
        return ()
    found = []
    for key in sorted(tied_keys(model)):
        first, last = (next(_of(key, stages, mine, end), None) for end in ends)
        if first is None and last is None:
            continue
        own, other = ends if first is not None else reversed(ends)
        # Ranks of both stages with one place in tp and dp have the same elements.
        found.append(
            Copies(first=first, last=last, elsewhere=other.devices[own.devices.index(rank)])
        )
    return tuple(found)


def _of(
    key: Key, stages: Sequence[Stage], mine: Sequence[StageParts], end: StageParts
) -> Iterator[nn.Parameter]:
    for stage, part in zip(stages, mine, strict=True):
        if part.chunk == end.chunk:
            yield from (stage.get_parameter(name) for name, own, _ in stage.keyed() if own == key)


def add_up(shared: Sequence[Copies], settled: Mapping[int, torch.Tensor]) -> None:
    """Give all copies the sum of their gradients. All ranks call it, after the last backward.

    Args:
        settled: by the identity of a parameter, its gradient, which lies as the parameter does.
    """
    for one in shared:
        gradients = [local(settled[id(p)]) for p in one.here]
        if len(one.here) == 2:
            total = gradients[0] + gradients[1]
        else:
            (own,) = gradients
            came = torch.empty_like(own)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, own.contiguous(), one.elsewhere),
                    dist.P2POp(dist.irecv, came, one.elsewhere),
                ]
            )
            for work in works:
                work.wait()
            total = own + came
        for gradient in gradients:
            gradient.copy_(total)
