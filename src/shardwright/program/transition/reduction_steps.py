"""Lists of steps that sum partial values, and the holders of each piece after them."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.program.layout.groups_of_one_device_per_class import representatives, transversals
from shardwright.program.transition.alternative_steps_that_copy_values_to_devices import (
    joined_steps,
)
from shardwright.program.transition.pieces_by_holding_and_wanting_devices import (
    Component,
    Group,
    LayoutPiece,
)
from shardwright.program.transition.transition_steps_and_symbolic_proof import (
    Act,
    Flow,
    StepKind,
    add,
    all_gather_act,
    all_reduce_act,
    even_ranges,
    rooted_act,
)

Summed = tuple[tuple[Act, ...], list[LayoutPiece]]


def sum_alternatives(component: Component) -> list[Summed]:
    """Each way to sum all partial pieces: (steps, all pieces with their holders afterwards).

    The ways are sums for the members that want them, in each group or once, whole sums for all
    members, and shares for all members.
    """
    full_pieces = [piece for piece in component.pieces if not piece.parts]
    bundles: dict[tuple[Group, ...], list[LayoutPiece]] = {}
    for piece in component.pieces:
        if piece.parts:
            bundles.setdefault(piece.parts, []).append(piece)
    if not bundles:
        return [((), full_pieces)]
    ways: list[Summed] = []
    for sum_way in (_sums_in_each_group, _sums_once, _all_reduces, _reduce_scatters):
        summed = [
            sum_way(component, _groups_of_all_parts(component, parts), pieces)
            for parts, pieces in bundles.items()
        ]
        if all(steps_and_pieces is not None for steps_and_pieces in summed):
            all_summed = [
                steps_and_pieces for steps_and_pieces in summed if steps_and_pieces is not None
            ]
            acts = tuple(
                joined_steps(
                    [act for steps_and_pieces, _ in all_summed for act in steps_and_pieces]
                )
            )
            ways.append(
                (
                    acts,
                    full_pieces
                    + [piece for _, pieces_after in all_summed for piece in pieces_after],
                )
            )
    return ways


def _groups_of_all_parts(component: Component, parts: tuple[Group, ...]) -> tuple[Group, ...]:
    """Disjoint groups with one holder of each part of a sum; one group if holders are unequal."""
    if len({len(holders) for holders in parts}) == 1:
        return transversals(parts, island=component.island)
    return (tuple(sorted(representatives(parts, island=component.island))),)


def _with_holders(
    piece: LayoutPiece, devices: Group, *, low: int | None = None, high: int | None = None
) -> LayoutPiece:
    """The piece, or a range of it, with `devices` as the holders of full values."""
    return LayoutPiece(
        low=piece.low if low is None else low,
        high=piece.high if high is None else high,
        full=tuple(sorted(devices)),
        parts=(),
        wanted=piece.wanted,
    )


def _sums_for_owners(
    component: Component, group: Group, owned: Sequence[tuple[int, LayoutPiece]]
) -> list[Act]:
    """One reduce-scatter if every member owns pieces, else a reduce to each owner."""
    if len({owner for owner, _ in owned}) == len(group):
        flows = [Flow(piece.low, piece.high, group, (owner,)) for owner, piece in owned]
        return [all_gather_act(component, StepKind.REDUCE_SCATTER, (group,), (flows,), sums=True)]
    spans: dict[int, list[tuple[int, int]]] = {}
    for owner, piece in owned:
        spans.setdefault(owner, []).append((piece.low, piece.high))
    acts = []
    for owner, ranges in spans.items():
        owner_island = component.island(owner)
        other_members = (device for device in group if device != owner)
        chain = sorted(
            other_members,
            key=lambda i: (component.island(i) != owner_island, component.island(i), i),
        )
        acts.append(rooted_act(component, StepKind.REDUCE, ((owner, *chain),), (ranges,)))
    return acts


def _sums_in_each_group(
    component: Component, groups: tuple[Group, ...], pieces: Sequence[LayoutPiece]
) -> Summed | None:
    """Sums in each group for the member that wants the piece; None if two members want one."""
    acts: list[Act] = []
    owners_of_piece: list[list[int]] = [[] for _ in pieces]
    for group in groups:
        members = set(group)
        owned = []
        for number, piece in enumerate(pieces):
            owners = members.intersection(piece.wanted)
            if len(owners) > 1:
                return None
            for owner in owners:
                owned.append((owner, piece))
                owners_of_piece[number].append(owner)
        acts += _sums_for_owners(component, group, owned) if owned else []
    if not all(owners_of_piece):
        return None
    return tuple(acts), [
        _with_holders(piece, tuple(owners))
        for piece, owners in zip(pieces, owners_of_piece, strict=True)
    ]


def _sums_once(
    component: Component, groups: tuple[Group, ...], pieces: Sequence[LayoutPiece]
) -> Summed | None:
    """One sum of each piece, for the least loaded member that wants it; None if none does.

    None if no member wants one.
    """
    load: dict[int, int] = {}
    owned: dict[Group, list[tuple[int, LayoutPiece]]] = {}
    group_of = {device: group for group in groups for device in group}
    pieces_after = []
    for piece in sorted(pieces, key=lambda piece: len(piece.wanted)):
        candidates = [device for device in piece.wanted if device in group_of]
        if not candidates:
            return None
        owner = min(candidates, key=lambda device: (load.get(device, 0), device))
        add(load, owner, piece.size)
        owned.setdefault(group_of[owner], []).append((owner, piece))
        pieces_after.append(_with_holders(piece, (owner,)))
    return tuple(
        act
        for group, owned_pieces in owned.items()
        for act in _sums_for_owners(component, group, owned_pieces)
    ), pieces_after


def _all_reduces(
    component: Component, groups: tuple[Group, ...], pieces: Sequence[LayoutPiece]
) -> Summed | None:
    """An all-reduce in each group; None if some member does not want all pieces."""
    all_members = {device for group in groups for device in group}
    if not all(all_members.issubset(piece.wanted) for piece in pieces):
        return None
    acts = [
        all_reduce_act(component, groups, [(piece.low, piece.high)] * len(groups))
        for piece in pieces
    ]
    return tuple(acts), [_with_holders(piece, tuple(all_members)) for piece in pieces]


def _reduce_scatters(
    component: Component, groups: tuple[Group, ...], pieces: Sequence[LayoutPiece]
) -> Summed:
    """Reduce-scatters that sum every element once, over shares of all members.

    Groups divide the pieces, and members divide the group's share.
    """
    total = sum(piece.size for piece in pieces)
    shares = even_ranges(0, total, sum(map(len, groups)))
    owners = [device for group in groups for device in group]
    group_of = {device: group for group in groups for device in group}
    flows: dict[Group, list[Flow]] = {group: [] for group in groups}
    pieces_after = []
    elements_before = 0
    for piece in pieces:
        for device, (low, high) in zip(owners, shares, strict=True):
            a, b = (
                max(low - elements_before, 0) + piece.low,
                min(high - elements_before, piece.size) + piece.low,
            )
            if a < b:
                flows[group_of[device]].append(Flow(a, b, group_of[device], (device,)))
                pieces_after.append(_with_holders(piece, (device,), low=a, high=b))
        elements_before += piece.size
    moving = {group: moved for group, moved in flows.items() if moved}
    return (
        all_gather_act(
            component, StepKind.REDUCE_SCATTER, tuple(moving), tuple(moving.values()), sums=True
        ),
    ), pieces_after
