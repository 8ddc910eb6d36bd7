"""Exchange of token rows between the devices that hold tokens and the devices of their experts.

A pair (token, choice) goes to every device that serves the token with the chosen expert, which are
the devices of all parts of the expert's width. The receiver takes it from itself if it holds the
token, else from the lowest device that holds it. Outputs of experts go to every device that holds
the token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from shardwright.execute.numerics.base.operator_collectives import exchange_tensors
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import (
    OperatorShare,
    RoutedTokens,
)
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.program.layout.tensor_layout import Box

TokenChoices = tuple[torch.Tensor, torch.Tensor]
"""(row of the token in the local tokens, choice) of each pair, in the order of (expert, token
number)."""


def send_to_experts(
    place: OperatorShare,
    expert_ids: torch.Tensor,
    rows_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    width: int,
    like: torch.Tensor,
    purpose: str,
) -> Task[tuple[torch.Tensor, torch.Tensor]]:
    """Send token rows to chosen experts: (routes of (local expert, token), rows) received here.

    Rows are sorted by (expert, token).

    Args:
        expert_ids: (samples, positions, topk) experts of the tokens that this device holds.
        rows_of: (pairs, `width`) rows to send, from the pairs' (tokens, choices).
    """
    routing, me = _routing(place), place.device
    held_tokens = _token_numbers(place, routing[me].held_tokens, like=expert_ids)
    outgoing: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for device, to in routing.items():
        tokens, slots = _token_choices_for(place, expert_ids, held_tokens, to)
        is_sender = _sender(place, routing, device, held_tokens[tokens]) == me
        tokens, slots = tokens[is_sender], slots[is_sender]
        experts = expert_ids.flatten(0, 1)[tokens, slots] - to.experts[0]
        outgoing[device] = torch.stack([experts, held_tokens[tokens]]), rows_of(tokens, slots)
    routes, rows = [outgoing[me][0]], [outgoing[me][1]]
    peers = tuple(d for d in routing if d != me)
    if peers:
        group = tuple(sorted(routing))
        sizes = {d: outgoing[d][0].new_tensor([outgoing[d][0].shape[1]]) for d in peers}
        peer_counts = yield from exchange_tensors(
            place,
            group,
            sizes,
            dict.fromkeys(peers, (1,)),
            purpose=f"{purpose} sizes",
            kind="all_to_all",
        )
        counts = {d: int(peer_counts[d]) for d in peers}
        peer_routes = yield from exchange_tensors(
            place,
            group,
            {d: outgoing[d][0] for d in peers},
            {d: (2, counts[d]) for d in peers},
            purpose=f"{purpose} routes",
            kind="all_to_all",
        )
        peer_rows = yield from exchange_tensors(
            place,
            group,
            {d: outgoing[d][1] for d in peers},
            {d: (counts[d], width) for d in peers},
            purpose=purpose,
            kind="all_to_all",
        )
        routes += [peer_routes[d] for d in peers]
        rows += [peer_rows[d] for d in peers]
    all_routes, all_rows = torch.cat(routes, dim=1), torch.cat(rows)
    order = _order_by_expert_and_token(all_routes[0], all_routes[1])
    return all_routes[:, order], all_rows[order]


def collect_from_experts(
    place: OperatorShare,
    expert_ids: torch.Tensor,
    routes: torch.Tensor,
    rows: torch.Tensor,
    *,
    purpose: str,
) -> Task[list[tuple[TokenChoices, torch.Tensor]]]:
    """Expert rows returned for this device's tokens: ((tokens, choices), rows) by expert device.

    Args:
        routes, rows: routes and rows of the device's own experts.
    """
    routing, me = _routing(place), place.device
    held_tokens = _token_numbers(place, routing[me].held_tokens, like=expert_ids)
    expected = {
        d: _token_choices_for(place, expert_ids, held_tokens, to)
        for d, to in routing.items()
        if not to.copy
    }
    outgoing = {
        d: rows[torch.isin(routes[1], _token_numbers(place, to.held_tokens, like=expert_ids))]
        for d, to in routing.items()
    }
    received: dict[int, torch.Tensor] = {}
    peers = tuple(d for d in routing if d != me)
    if peers:
        sends = {} if routing[me].copy else {d: outgoing[d] for d in peers}
        receives = {d: (len(expected[d][0]), rows.shape[-1]) for d in peers if d in expected}
        received = yield from exchange_tensors(
            place,
            tuple(sorted(routing)),
            sends,
            receives,
            purpose=f"{purpose} back",
            kind="all_to_all",
        )
    if me in expected:
        received[me] = outgoing[me]
    return [(expected[d], received[d]) for d in sorted(expected)]


def _routing(place: OperatorShare) -> dict[int, RoutedTokens]:
    """Tokens held, tokens and experts served, by device; of this device alone if not divided."""
    if place.routing:
        return dict(sorted(place.routing.items()))
    tokens = (place.samples, place.positions)
    return {
        place.device: RoutedTokens(held_tokens=tokens, expert_tokens=tokens, experts=place.experts)
    }


def _token_numbers(place: OperatorShare, box: Box, *, like: torch.Tensor) -> torch.Tensor:
    """(tokens,) number sample x length + position of each token in a box, in row order."""
    if not box:
        return index_tensor((), like=like)
    samples, positions = (index_tensor(indices, like=like) for indices in box)
    return (samples.unsqueeze(-1) * place.length + positions).flatten()


def _token_choices_for(
    place: OperatorShare, expert_ids: torch.Tensor, held_tokens: torch.Tensor, to: RoutedTokens
) -> TokenChoices:
    """(local token rows, choices) whose expert and token the device of `to` serves, by expert."""
    low, high = to.experts
    flat = expert_ids.flatten(0, 1)
    served = torch.isin(
        held_tokens, _token_numbers(place, to.expert_tokens, like=expert_ids)
    ).unsqueeze(-1)
    tokens, slots = torch.nonzero(served & (flat >= low) & (flat < high), as_tuple=True)
    order = _order_by_expert_and_token(flat[tokens, slots], held_tokens[tokens])
    return tokens[order], slots[order]


def _sender(
    place: OperatorShare, routing: dict[int, RoutedTokens], to: int, tokens: torch.Tensor
) -> torch.Tensor:
    """Device that sends each token to `to`: `to` itself if it has the token, else the lowest."""
    sender = torch.full_like(tokens, -1)
    for device in (to, *routing):
        holds = torch.isin(tokens, _token_numbers(place, routing[device].held_tokens, like=tokens))
        sender = torch.where((sender < 0) & holds, device, sender)
    return sender


def _order_by_expert_and_token(experts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Indices that sort by expert, then token."""
    by_token = torch.argsort(tokens, stable=True)
    return by_token[torch.argsort(experts[by_token], stable=True)]
