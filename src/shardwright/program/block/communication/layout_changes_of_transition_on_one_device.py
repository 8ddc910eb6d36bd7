"""Layout changes of a tensor on one device, from the steps of a transition between two layouts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.program.block.grid_or_plan_cut_protocol import LayoutChange
from shardwright.program.block.symbolic_sizes import Size
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.tensor_layout import Layout
from shardwright.program.transition.cheapest_layout_transition import Transition, transition
from shardwright.program.transition.restrict_layouts_to_exchanging_devices import component
from shardwright.program.transition.transition_steps_and_symbolic_proof import StepKind


@lru_cache(maxsize=16384)
def transition_near_device(
    source: Same[Layout], wanted: Same[Layout], device: int, island: int
) -> Transition | None:
    """Cached transition of devices that exchange with `device`; None if none; `island` in devices.

    None if it has every element that it needs and no other device asks for one.
    """
    near = component(device, source.value, wanted.value)
    return (
        None
        if near is None
        else transition(*near, islands=equal_units((island,))[0] if island else None)
    )


_KINDS = {kind: Collective(kind.value) for kind in StepKind if kind is not StepKind.REDUCE} | {
    StepKind.REDUCE: Collective.BROADCAST
}
"""Collectives as they are priced: a reduction to one member costs what its transpose does."""


def merge_same_steps(changes: list[LayoutChange]) -> tuple[LayoutChange, ...]:
    """Changes that take the same step, merged with their volumes added up.

    Extents of one tensor travel together.
    """
    by_step: dict[object, LayoutChange] = {}
    for change in changes:
        key = (change.axis, change.forward, change.backward, change.group, _step_number(change))
        merged = by_step.get(key)
        by_step[key] = (
            change
            if merged is None
            else replace(
                merged,
                forward_volume=merged.forward_volume + change.forward_volume,
                backward_volume=merged.backward_volume + change.backward_volume,
            )
        )
    return tuple(by_step.values())


def _step_number(change: LayoutChange) -> int:
    """Index of the transition step that a change takes, counted from 0."""
    assert isinstance(change.between, tuple)
    number: int = change.between[1]
    return number


def changes_of_transition(
    steps: Transition | None, device: int, element: int, *, forward: bool, between: tuple[int, int]
) -> list[LayoutChange]:
    """Layout change, forward or backward alone, of each step that involves `device`."""
    changes: list[LayoutChange] = []
    for number, step in enumerate(steps.steps if steps is not None else ()):
        pairs = zip(step.groups, step.elements, strict=True)
        group, elements = next(((g, size) for g, size in pairs if device in g), ((), 0))
        volume, kind = elements * element, _KINDS[step.kind]
        if step.kind is StepKind.SEND:
            sent = sum(n for a, _, n in step.sends if a == device)
            received = sum(n for _, b, n in step.sends if b == device)
            group = tuple(sorted({d for a, b, _ in step.sends if device in (a, b) for d in (a, b)}))
            volume = max(sent, received) * element
        if len(group) < 2 or not volume:
            continue
        sizes = (Size(times=volume),)
        changes.append(
            LayoutChange(
                axis="ulysses" if kind is Collective.ALL_TO_ALL else "tp",
                forward=kind if forward else None,
                backward=None if forward else kind,
                forward_volume=sizes if forward else (),
                backward_volume=() if forward else sizes,
                group=group,
                between=(between, number),
            )
        )
    return changes
