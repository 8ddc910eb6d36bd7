"""Cheapest steps, proven correct, that bring a tensor from one layout to another.

Pieces that have the same holders and the same consumers are one
(`pieces_by_holding_and_wanting_devices`); sets of devices that exchange nothing with each other
are solved separately, equal ones once. For each, lists of steps are made (`reduction_steps`, then
`alternative_steps_that_copy_values_to_devices`), and the best one is run on symbols
(`transition_steps_and_symbolic_proof`). Collectives are the patterns that lists of steps turn out
to be; nothing declares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache

from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Layout
from shardwright.program.transition.alternative_steps_that_copy_values_to_devices import (
    copy_alternatives,
)
from shardwright.program.transition.pieces_by_holding_and_wanting_devices import (
    Component,
    LayoutPiece,
    PlacedPiece,
    components,
)
from shardwright.program.transition.reduction_steps import sum_alternatives
from shardwright.program.transition.transition_steps_and_symbolic_proof import (
    Act,
    Load,
    StepKind,
    TransitionStep,
    add,
    delivers_wanted_values,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The steps that bring a tensor from one layout to another.

    Attributes:
        steps: in order; steps of different devices run at once.
        received: (device, elements received in all) of devices that receive.
        minimum: elements that must be received in all, whatever the steps (zoo section 5, rule 3).
        placed: the independent sets of devices.
    """

    steps: tuple[TransitionStep, ...]
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
    """The cheapest copies and reductions that bring full values to the devices that want them.

    Cheapest: least elements sent or received by the busiest device, then in all, then least that
    cross islands (or stages), then fewest steps.

    Args:
        source: full values or parts of sums.
        wanted: full values only; the source must cover it.
        across: two stages: only messages cross between their devices, collectives run on one side.
        collectives: False: copies are whole messages from holders to consumers, nothing is shared
            out and gathered.
        islands: islands of the devices; None: no islands.

    Leaves out: time. Senders of pieces with overlapping sets of holders are balanced piece by
    piece, not by a transportation problem. Hierarchical collectives are `collectives/` of the
    group, not steps here.

    Raises:
        StrategyError: layout.coverage if no device holds a wanted element; layout.overlap if parts
            of a sum overlap without being equal.

    Source: zoo section 5; exact patterns of Xu et al. 2021 (GSPMD), section 3.
    """
    placed = components(source, wanted, across=across, collectives=collectives, islands=islands)
    received: Load = {}
    components_by_form: dict[
        tuple[tuple[StepKind, int], ...], list[tuple[PlacedPiece, tuple[Act, ...]]]
    ] = {}
    for placed_component in placed:
        acts = best_acts(placed_component.component)
        form = tuple(
            (act.step.kind, len(act.step.groups[0]) if act.step.groups else 0) for act in acts
        )
        components_by_form.setdefault(form, []).append((placed_component, acts))
        for act in acts:
            for device, elements in act.received.items():
                if elements:
                    add(received, placed_component.devices[device], elements)
    return Transition(
        steps=tuple(
            step for same_form in components_by_form.values() for step in _steps_at_once(same_form)
        ),
        received=tuple(sorted(received.items())),
        minimum=sum(minimum_received(placed_component.component) for placed_component in placed),
        placed=placed,
    )


def _steps_at_once(
    same_form: Sequence[tuple[PlacedPiece, tuple[Act, ...]]],
) -> Iterator[TransitionStep]:
    """Merge the steps of components that take the same steps, so that each runs at once."""
    for number, act in enumerate(same_form[0][1]):
        steps = [
            (placed_component.devices, acts[number].step) for placed_component, acts in same_form
        ]
        yield TransitionStep(
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
def best_acts(component: Component) -> tuple[Act, ...]:
    """The cheapest steps of one component, proven correct by running them on symbols (cached)."""
    best = min(candidate_acts(component), key=lambda acts: _cost_of_acts(acts))
    assert delivers_wanted_values(component, best), "steps must give what is wanted"
    return best


def candidate_acts(component: Component) -> list[tuple[Act, ...]]:
    """All lists of steps to compare: each way to sum, combined with each way to copy."""
    return [
        (*summed, *copied)
        for summed, pieces in sum_alternatives(component)
        for copied in copy_alternatives(component, pieces)
    ]


def _cost_of_acts(acts: Sequence[Act]) -> tuple[int, int, int, int]:
    """(busiest device's elements, all elements, elements across islands, steps), compared so."""
    sent: Load = {}
    received: Load = {}
    for act in acts:
        for device, elements in act.sent.items():
            add(sent, device, elements)
        for device, elements in act.received.items():
            add(received, device, elements)
    busiest = max((*sent.values(), *received.values()), default=0)
    return busiest, sum(received.values()), sum(act.crossing for act in acts), len(acts)


def minimum_received(component: Component) -> int:
    """Lower bound of received elements: a copy a lacking device, k - 1 more to sum k parts.

    A copy for each device that lacks a piece; a sum of k parts takes k - 1 and a copy for each
    further device.

    If no device that wants the sum holds a part of it, all k parts or the sum travel once more.

    Source: zoo section 5, rule 3.
    """
    return sum(piece.size * _minimum_copies(piece) for piece in component.pieces)


def _minimum_copies(piece: LayoutPiece) -> int:
    """Lower bound on how often a piece's elements are received, by lacking devices and parts."""
    if not piece.parts:
        return len(piece.lacking)
    holders = {device for part in piece.parts for device in part}
    return len(piece.parts) - 1 + len(piece.wanted) - (not holders.isdisjoint(piece.wanted))
