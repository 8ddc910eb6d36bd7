"""Dispatch of token rows to the ranks of their experts and back: all-to-all over ep and etp."""

from __future__ import annotations

import torch
import torch.distributed as dist

from shardwright.execute.native.private_torch_api import all_to_all_rows
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertOwners:
    """An expert-parallel group: ranks that jointly hold every expert.

    Args:
        group: the process group of the ranks.
        runs: number of the run of experts (of equally long runs) that each rank has, in the group's
            order. Ranks with the same run have parts of every expert's width.
    """

    group: dist.ProcessGroup
    runs: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of parts into which the group's ranks divide the experts."""
        return max(self.runs) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRoute:
    """The route of the rows that this rank received, by which the experts' outputs return.

    Args:
        order: for each of the rank's own rows, its (token, choice) as one number.
        turn: the permutation that sorts the received rows by expert.
        send_counts, receive_counts: number of rows to and from every rank of `to`.
        to: the ranks that jointly hold all experts; None: each rank has all.
    """

    order: torch.Tensor
    turn: torch.Tensor | None = None
    send_counts: tuple[int, ...] = ()
    receive_counts: tuple[int, ...] = ()
    to: ExpertOwners | None = None


def send_rows(
    rows: torch.Tensor, counts: torch.Tensor, order: torch.Tensor, *, to: ExpertOwners
) -> tuple[torch.Tensor, torch.Tensor, TokenRoute]:
    """Send rows to their experts' ranks: (received rows, counts by local expert, route back).

    Received rows are sorted by expert, then by the source rank.

    Args:
        rows: the rank's rows, sorted by expert.
        counts: (experts,) number of rows of each expert.
        order: see `TokenRoute`.
    """
    runs = counts.view(to.count, -1)
    send_counts = runs[list(to.runs)]
    receive_counts = torch.empty_like(send_counts)
    dist.all_to_all_single(receive_counts, send_counts, group=to.group)
    sent, received = (tuple(x.sum(-1).tolist()) for x in (send_counts, receive_counts))
    parts = rows.split(runs.sum(-1).tolist())
    received_rows = all_to_all_rows(
        torch.cat([parts[run] for run in to.runs]),
        send_counts=sent,
        receive_counts=received,
        group=to.group,
    )
    experts = torch.arange(receive_counts.shape[1], device=rows.device).repeat(
        receive_counts.shape[0]
    )
    order_by_expert = torch.argsort(
        experts.repeat_interleave(receive_counts.flatten()), stable=True
    )
    return (
        received_rows[order_by_expert],
        receive_counts.sum(0),
        TokenRoute(
            order=order, turn=order_by_expert, send_counts=sent, receive_counts=received, to=to
        ),
    )


def return_rows(rows: torch.Tensor, route: TokenRoute) -> torch.Tensor:
    """Send experts' outputs back: own rows in the order of (token, choice), expert parts summed.

    Outputs of several parts of an expert are summed.
    """
    if route.to is not None:
        assert route.turn is not None
        returned = all_to_all_rows(
            rows[torch.argsort(route.turn)],
            send_counts=route.receive_counts,
            receive_counts=route.send_counts,
            group=route.to.group,
        ).split(list(route.send_counts))
        runs = [
            [part for part, run in zip(returned, route.to.runs, strict=True) if run == number]
            for number in range(route.to.count)
        ]
        rows = torch.cat(
            [parts[0] if len(parts) == 1 else torch.stack(parts).sum(0) for parts in runs]
        )
    return rows[torch.argsort(route.order)]
