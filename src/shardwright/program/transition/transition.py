"""Transitions: from where a tensor is to where it is wanted, in the cheapest steps that are found
and proven.

Pieces that have the same holders and the same consumers are one (`transition_pieces`); sets of
devices that have nothing to do with each other are solved apart, equal ones once. For each, lists
of steps are made (`transition_sums`, then `transition_copies`), and the best one is run on symbols
(`transition_steps`). Collectives are what lists of steps turn out to be; nothing declares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache

from shardwright.hardware.graph import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.layout import Layout
from shardwright.program.transition.copies import copies
from shardwright.program.transition.pieces import Component, Piece, PlacedPiece, components
from shardwright.program.transition.steps import Act, Load, Step, StepKind, add, execute
from shardwright.program.transition.sums import sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """How a tensor gets from one layout to another.

    Attributes:
        steps: in order; steps of different devices run at once. received: (device, elements
        received in all) of devices that receive. minimum: elements that must be received in all,
        whatever the steps (zoo section 5, rule 3). placed: the independent sets of devices.
    """

    steps: tuple[Step, ...]
    received: tuple[tuple[int, int], ...]
    minimum: int
    placed: tuple[PlacedPiece, ...] = field(default=(), repr=False, compare=False)


@lru_cache(maxsize=4096)
def transition(
    source: Layout,
    wanted: Layout,
    *,
    across: bool = False,
    collectives: bool = True,
    islands: Units | None = None,
) -> Transition:
    """The steps that bring full values to where they are wanted.

    Least elements sent or received by the busiest device, then in all, then least that cross
    islands (or stages), then fewest steps.

    Args:
        source: full values or parts of sums.
        wanted: full values only; the source must cover it.
        across: two stages: only messages cross between their devices, collectives run on one side.
        collectives: False: copies are whole messages from holders to consumers, nothing is shared
            out and gathered.
        islands: that devices lie in; None: no islands.

    Leaves out: time. Senders of pieces with overlapping sets of holders are balanced piece by
    piece, not by a transportation problem. Hierarchical collectives are `collectives/` of the
    group, not steps here.

    Raises:
        StrategyError: layout.coverage if nobody holds what is wanted; layout.overlap if parts of a
        sum overlap without being equal.

    Source: zoo section 5; exact patterns of Xu et al. 2021 (GSPMD), section 3.
    """
    placed = components(source, wanted, across=across, collectives=collectives, islands=islands)
    received: Load = {}
    alike: dict[tuple[tuple[StepKind, int], ...], list[tuple[PlacedPiece, tuple[Act, ...]]]] = {}
    for one in placed:
        acts = solve(one.component)
        form = tuple(
            (act.step.kind, len(act.step.groups[0]) if act.step.groups else 0) for act in acts
        )
        alike.setdefault(form, []).append((one, acts))
        for act in acts:
            for device, elements in act.received.items():
                if elements:
                    add(received, one.devices[device], elements)
    return Transition(
        steps=tuple(step for same in alike.values() for step in _side_by_side(same)),
        received=tuple(sorted(received.items())),
        minimum=sum(minimum(one.component) for one in placed),
        placed=placed,
    )


def _side_by_side(same: Sequence[tuple[PlacedPiece, tuple[Act, ...]]]) -> Iterator[Step]:
    """Steps of components that take the same steps, each step of all at once."""
    for number, act in enumerate(same[0][1]):
        steps = [(one.devices, acts[number].step) for one, acts in same]
        yield Step(
            kind=act.step.kind,
            groups=tuple(
                tuple(devices[i] for i in group) for devices, step in steps for group in step.groups
            ),
            elements=tuple(size for _, step in steps for size in step.elements),
            sends=tuple(
                (devices[a], devices[b], elements)
                for devices, step in steps
                for a, b, elements in step.sends
            ),
        )


@lru_cache(maxsize=4096)
def solve(component: Component) -> tuple[Act, ...]:
    """The best steps of one component, proven by running them on symbols."""
    best = min(candidates(component), key=lambda acts: _price(acts))
    assert execute(component, best), "steps must give what is wanted"
    return best


def candidates(component: Component) -> list[tuple[Act, ...]]:
    """All lists of steps that are looked at."""
    return [
        (*summed, *copied)
        for summed, pieces in sums(component)
        for copied in copies(component, pieces)
    ]


def _price(acts: Sequence[Act]) -> tuple[int, int, int, int]:
    sent: Load = {}
    received: Load = {}
    for act in acts:
        for device, elements in act.sent.items():
            add(sent, device, elements)
        for device, elements in act.received.items():
            add(received, device, elements)
    busiest = max((*sent.values(), *received.values()), default=0)
    return busiest, sum(received.values()), sum(act.crossing for act in acts), len(acts)


def minimum(component: Component) -> int:
    """Elements that must be received in all: a copy for each that lacks it; a sum of k parts takes
    k - 1 and a copy for each further one.

    If nobody that wants the sum holds a part of it, all k parts or the sum travel once more.
    Source: zoo section 5, rule 3.
    """
    return sum(piece.size * _least(piece) for piece in component.pieces)


def _least(piece: Piece) -> int:
    if not piece.parts:
        return len(piece.lacking)
    holders = {device for part in piece.parts for device in part}
    return len(piece.parts) - 1 + len(piece.wanted) - (not holders.isdisjoint(piece.wanted))
