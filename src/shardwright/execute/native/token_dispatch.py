"""Rows of tokens on their way to the ranks that have their experts, and back: all-to-all over ep
and etp.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from shardwright.execute.native.torch_private import exchanged
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Ranks that have all experts together.

    Args:
        group: of them.
        runs: which of the equal runs of experts each has, in the group's order; of a run that
            several have, each has a part of every expert's width.
    """

    group: dist.ProcessGroup
    runs: tuple[int, ...]

    @property
    def count(self) -> int:
        """Runs of experts."""
        return max(self.runs) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The route of rows that came to this rank, by which the experts' outputs return.

    Args:
        order: of the rank's own rows, their (token, choice) as one number.
        turn: of the rows that came, their places in the order of their experts.
        given, came: rows to and from every rank of `to`; None where each rank has all experts.
    """

    order: torch.Tensor
    turn: torch.Tensor | None = None
    given: tuple[int, ...] = ()
    came: tuple[int, ...] = ()
    to: Owners | None = None


def sent(
    rows: torch.Tensor, counts: torch.Tensor, order: torch.Tensor, *, to: Owners
) -> tuple[torch.Tensor, torch.Tensor, Way]:
    """(rows of this rank's experts, sorted by expert, then by the rank that they came from; their
    number by expert; their way).

    Args:
        rows: sorted by expert.
        counts: (experts) of them.
        order: see `Way`.
    """
    runs = counts.view(to.count, -1)
    mine = runs[list(to.runs)]
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs, mine, group=to.group)
    given, came = (tuple(x.sum(-1).tolist()) for x in (mine, theirs))
    parts = rows.split(runs.sum(-1).tolist())
    brought = exchanged(
        torch.cat([parts[run] for run in to.runs]), given=given, came=came, group=to.group
    )
    experts = torch.arange(theirs.shape[1], device=rows.device).repeat(theirs.shape[0])
    turn = torch.argsort(experts.repeat_interleave(theirs.flatten()), stable=True)
    return brought[turn], theirs.sum(0), Way(order=order, turn=turn, given=given, came=came, to=to)


def returned(rows: torch.Tensor, way: Way) -> torch.Tensor:
    """The experts' outputs for this rank's rows, in the order of (token, choice); the sum over
    parts of an expert.
    """
    if way.to is not None:
        assert way.turn is not None
        back = exchanged(
            rows[torch.argsort(way.turn)], given=way.came, came=way.given, group=way.to.group
        ).split(list(way.given))
        runs = [
            [part for part, run in zip(back, way.to.runs, strict=True) if run == number]
            for number in range(way.to.count)
        ]
        rows = torch.cat(
            [parts[0] if len(parts) == 1 else torch.stack(parts).sum(0) for parts in runs]
        )
    return rows[torch.argsort(way.order)]
