"""The way of rows from where tokens are held to their experts, and back.

A pair (token, choice) goes to every device that serves the token with the chosen expert: all parts
of its width. The device itself gives it if it holds the token, else the lowest device that holds
it. What experts answer goes to every device that holds the token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from shardwright.execute.numerics.base.group_calls import exchanged
from shardwright.execute.numerics.base.local_tensors import numbers
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare, Routed
from shardwright.program.layout.tensor_layout import Box

Pairs = tuple[torch.Tensor, torch.Tensor]
"""(row of the token in the local tokens, choice), in the order of (expert, token number)."""


def dispatched(
    place: OperatorShare,
    chosen: torch.Tensor,
    rows_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    width: int,
    like: torch.Tensor,
    what: str,
) -> Task[tuple[torch.Tensor, torch.Tensor]]:
    """(routes, rows) of the device's own experts, sorted by (expert, token).

    Args:
        chosen: (samples, positions, topk) experts of the tokens held here.
        rows_of: of pairs' (tokens, choices), (pairs, `width`).
    """
    routing, me = _routing(place), place.device
    held = _tokens(place, routing[me].home, like=chosen)
    outgoing: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for device, to in routing.items():
        tokens, slots = _pairs(place, chosen, held, to)
        mine = _giver(place, routing, device, held[tokens]) == me
        tokens, slots = tokens[mine], slots[mine]
        experts = chosen.flatten(0, 1)[tokens, slots] - to.experts[0]
        outgoing[device] = torch.stack([experts, held[tokens]]), rows_of(tokens, slots)
    routes, rows = [outgoing[me][0]], [outgoing[me][1]]
    others = tuple(d for d in routing if d != me)
    if others:
        group = tuple(sorted(routing))
        sizes = {d: outgoing[d][0].new_tensor([outgoing[d][0].shape[1]]) for d in others}
        told = yield from exchanged(
            place,
            group,
            sizes,
            dict.fromkeys(others, (1,)),
            what=f"{what} sizes",
            kind="all_to_all",
        )
        counts = {d: int(told[d]) for d in others}
        came = yield from exchanged(
            place,
            group,
            {d: outgoing[d][0] for d in others},
            {d: (2, counts[d]) for d in others},
            what=f"{what} routes",
            kind="all_to_all",
        )
        brought = yield from exchanged(
            place,
            group,
            {d: outgoing[d][1] for d in others},
            {d: (counts[d], width) for d in others},
            what=what,
            kind="all_to_all",
        )
        routes += [came[d] for d in others]
        rows += [brought[d] for d in others]
    joined, whole = torch.cat(routes, dim=1), torch.cat(rows)
    order = _order(joined[0], joined[1])
    return joined[:, order], whole[order]


def collected(
    place: OperatorShare,
    chosen: torch.Tensor,
    routes: torch.Tensor,
    rows: torch.Tensor,
    *,
    what: str,
) -> Task[list[tuple[Pairs, torch.Tensor]]]:
    """What every device with experts answers for the tokens held here: (pairs, their rows), by
    device.

    Args:
        routes, rows: of the device's own experts.
    """
    routing, me = _routing(place), place.device
    held = _tokens(place, routing[me].home, like=chosen)
    expected = {d: _pairs(place, chosen, held, to) for d, to in routing.items() if not to.copy}
    answered = {
        d: rows[torch.isin(routes[1], _tokens(place, to.home, like=chosen))]
        for d, to in routing.items()
    }
    came: dict[int, torch.Tensor] = {}
    others = tuple(d for d in routing if d != me)
    if others:
        gives = {} if routing[me].copy else {d: answered[d] for d in others}
        receives = {d: (len(expected[d][0]), rows.shape[-1]) for d in others if d in expected}
        came = yield from exchanged(
            place, tuple(sorted(routing)), gives, receives, what=f"{what} back", kind="all_to_all"
        )
    if me in expected:
        came[me] = answered[me]
    return [(expected[d], came[d]) for d in sorted(expected)]


def _routing(place: OperatorShare) -> dict[int, Routed]:
    """Of every device, in order; the device alone where nothing is split."""
    if place.routing:
        return dict(sorted(place.routing.items()))
    tokens = (place.samples, place.positions)
    return {place.device: Routed(home=tokens, serves=tokens, experts=place.experts)}


def _tokens(place: OperatorShare, box: Box, *, like: torch.Tensor) -> torch.Tensor:
    """Numbers of a box's tokens, in the order of its rows."""
    if not box:
        return numbers((), like=like)
    samples, positions = (numbers(indices, like=like) for indices in box)
    return (samples.unsqueeze(-1) * place.length + positions).flatten()


def _pairs(place: OperatorShare, chosen: torch.Tensor, held: torch.Tensor, to: Routed) -> Pairs:
    """Pairs of the tokens `held` here that go to a device."""
    low, high = to.experts
    flat = chosen.flatten(0, 1)
    served = torch.isin(held, _tokens(place, to.serves, like=chosen)).unsqueeze(-1)
    tokens, slots = torch.nonzero(served & (flat >= low) & (flat < high), as_tuple=True)
    order = _order(flat[tokens, slots], held[tokens])
    return tokens[order], slots[order]


def _giver(
    place: OperatorShare, routing: dict[int, Routed], to: int, tokens: torch.Tensor
) -> torch.Tensor:
    """Which device gives each of the tokens to the device `to`."""
    giver = torch.full_like(tokens, -1)
    for device in (to, *routing):
        holds = torch.isin(tokens, _tokens(place, routing[device].home, like=tokens))
        giver = torch.where((giver < 0) & holds, device, giver)
    return giver


def _order(experts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """By expert, then token."""
    by_token = torch.argsort(tokens, stable=True)
    return by_token[torch.argsort(experts[by_token], stable=True)]
