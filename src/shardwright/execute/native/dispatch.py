"""Rows of tokens on their way to the ranks that have their experts, and back: all-to-all over ep."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardwright.execute.native.torch_private import exchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How rows came to this rank, by which what experts answer goes back.

    Args:
        order: of the rank's own rows, their (token, choice) as one number. turn: of the rows that came, their places in the order of
            their experts. given, came: rows to and from every rank of `group`; None where each rank has all experts.
    """

    order: torch.Tensor
    turn: torch.Tensor | None = None
    given: tuple[int, ...] = ()
    came: tuple[int, ...] = ()
    group: dist.ProcessGroup | None = None


def sent(
    rows: torch.Tensor, counts: torch.Tensor, order: torch.Tensor, *, group: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor, Way]:
    """(rows of this rank's experts, sorted by expert, then by the rank that they came from; their number by expert; their way).

    Args:
        rows: sorted by expert. counts: (experts) of them. order: see `Way`. group: ranks of ep, which have as many experts each, in order.
    """
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts, group=group)
    by_rank = theirs.view(group.size(), -1)
    given, came = (tuple(x.sum(-1).tolist()) for x in (counts.view(group.size(), -1), by_rank))
    brought = exchanged(rows, given=given, came=came, group=group)
    experts = torch.arange(by_rank.shape[1], device=rows.device).repeat(group.size())
    turn = torch.argsort(experts.repeat_interleave(theirs), stable=True)
    return brought[turn], by_rank.sum(0), Way(order=order, turn=turn, given=given, came=came, group=group)


def returned(rows: torch.Tensor, way: Way) -> torch.Tensor:
    """What experts answered to this rank's rows, in the order of (token, choice)."""
    if way.group is not None:
        assert way.turn is not None
        rows = exchanged(rows[torch.argsort(way.turn)], given=way.came, came=way.given, group=way.group)
    return rows[torch.argsort(way.order)]
