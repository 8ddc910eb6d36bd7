"""Ways to sum partial values, and what is then full where."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.program.layout.partners import representatives, transversals
from shardwright.program.transition.copies import joined
from shardwright.program.transition.pieces import Component, Group, Piece
from shardwright.program.transition.steps import (
    Act,
    Flow,
    StepKind,
    add,
    all_reduced,
    even,
    exchanged,
    rooted,
)

Summed = tuple[tuple[Act, ...], list[Piece]]


def sums(component: Component) -> list[Summed]:
    """(steps, pieces with their holders after them) of each way: shares for all members, whole sums
    for all members, sums for those that want them; one way serves all sums of the component.
    """
    whole = [piece for piece in component.pieces if not piece.parts]
    bundles: dict[tuple[Group, ...], list[Piece]] = {}
    for piece in component.pieces:
        if piece.parts:
            bundles.setdefault(piece.parts, []).append(piece)
    if not bundles:
        return [((), whole)]
    result: list[Summed] = []
    for way in (_wanted_in_each, _wanted_once, _everywhere, _shares):
        done = [
            way(component, _groups(component, parts), pieces) for parts, pieces in bundles.items()
        ]
        if all(one is not None for one in done):
            found = [one for one in done if one is not None]
            acts = tuple(joined([act for one, _ in found for act in one]))
            result.append((acts, whole + [piece for _, after in found for piece in after]))
    return result


def _groups(component: Component, parts: tuple[Group, ...]) -> tuple[Group, ...]:
    """Groups that hold each part once: as many as there are copies if all parts have as many, else
    one.
    """
    if len({len(holders) for holders in parts}) == 1:
        return transversals(parts, island=component.island)
    return (tuple(sorted(representatives(parts, island=component.island))),)


def _stored_parts(
    piece: Piece, devices: Group, *, low: int | None = None, high: int | None = None
) -> Piece:
    """The piece, or a range of it, after the devices got full values."""
    return Piece(
        low=piece.low if low is None else low,
        high=piece.high if high is None else high,
        full=tuple(sorted(devices)),
        parts=(),
        wanted=piece.wanted,
    )


def _to_owners(component: Component, group: Group, owned: Sequence[tuple[int, Piece]]) -> list[Act]:
    """One reduce_scatter if every member owns pieces, else a reduce to each owner."""
    if len({owner for owner, _ in owned}) == len(group):
        flows = [Flow(piece.low, piece.high, group, (owner,)) for owner, piece in owned]
        return [exchanged(component, StepKind.REDUCE_SCATTER, (group,), (flows,), sums=True)]
    spans: dict[int, list[tuple[int, int]]] = {}
    for owner, piece in owned:
        spans.setdefault(owner, []).append((piece.low, piece.high))
    acts = []
    for owner, own in spans.items():
        home = component.island(owner)
        others = (device for device in group if device != owner)
        chain = sorted(others, key=lambda i: (component.island(i) != home, component.island(i), i))
        acts.append(rooted(component, StepKind.REDUCE, ((owner, *chain),), (own,)))
    return acts


def _wanted_in_each(
    component: Component, groups: tuple[Group, ...], pieces: Sequence[Piece]
) -> Summed | None:
    """Each group sums what one of its members wants, for that member; None if two of a group want
    the same.
    """
    acts: list[Act] = []
    after: list[list[int]] = [[] for _ in pieces]
    for group in groups:
        members = set(group)
        owned = []
        for number, piece in enumerate(pieces):
            owners = members.intersection(piece.wanted)
            if len(owners) > 1:
                return None
            for owner in owners:
                owned.append((owner, piece))
                after[number].append(owner)
        acts += _to_owners(component, group, owned) if owned else []
    if not all(after):
        return None
    return tuple(acts), [
        _stored_parts(piece, tuple(owners)) for piece, owners in zip(pieces, after, strict=True)
    ]


def _wanted_once(
    component: Component, groups: tuple[Group, ...], pieces: Sequence[Piece]
) -> Summed | None:
    """Each piece is summed once, for a member that wants it: the one with the least so far. None if
    no member wants one.
    """
    load: dict[int, int] = {}
    owned: dict[Group, list[tuple[int, Piece]]] = {}
    home = {device: group for group in groups for device in group}
    after = []
    for piece in sorted(pieces, key=lambda piece: len(piece.wanted)):
        candidates = [device for device in piece.wanted if device in home]
        if not candidates:
            return None
        owner = min(candidates, key=lambda device: (load.get(device, 0), device))
        add(load, owner, piece.size)
        owned.setdefault(home[owner], []).append((owner, piece))
        after.append(_stored_parts(piece, (owner,)))
    return tuple(
        act for group, own in owned.items() for act in _to_owners(component, group, own)
    ), after


def _everywhere(
    component: Component, groups: tuple[Group, ...], pieces: Sequence[Piece]
) -> Summed | None:
    """An all_reduce in each group; None if some member does not want it all."""
    members = {device for group in groups for device in group}
    if not all(members.issubset(piece.wanted) for piece in pieces):
        return None
    acts = [
        all_reduced(component, groups, [(piece.low, piece.high)] * len(groups)) for piece in pieces
    ]
    return tuple(acts), [_stored_parts(piece, tuple(members)) for piece in pieces]


def _shares(component: Component, groups: tuple[Group, ...], pieces: Sequence[Piece]) -> Summed:
    """Groups divide the pieces, and members divide the group's share: every element is summed once,
    by reduce_scatter.
    """
    total = sum(piece.size for piece in pieces)
    shares = even(0, total, sum(map(len, groups)))
    owners = [device for group in groups for device in group]
    home = {device: group for group in groups for device in group}
    flows: dict[Group, list[Flow]] = {group: [] for group in groups}
    after = []
    passed = 0
    for piece in pieces:
        for device, (low, high) in zip(owners, shares, strict=True):
            a, b = max(low - passed, 0) + piece.low, min(high - passed, piece.size) + piece.low
            if a < b:
                flows[home[device]].append(Flow(a, b, home[device], (device,)))
                after.append(_stored_parts(piece, (device,), low=a, high=b))
        passed += piece.size
    own = {group: moved for group, moved in flows.items() if moved}
    return (
        exchanged(component, StepKind.REDUCE_SCATTER, tuple(own), tuple(own.values()), sums=True),
    ), after
