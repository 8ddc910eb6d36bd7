"""What the steps of a transition do."""

from __future__ import annotations

from shardwright.program.transition.cheapest_layout_transition import Transition, best_acts
from shardwright.program.transition.pieces_by_holding_and_wanting_devices import PlacedPiece
from shardwright.program.transition.transition_steps_and_symbolic_proof import Flow


def flows(found: Transition) -> tuple[tuple[PlacedPiece, tuple[tuple[Flow, ...], ...]], ...]:
    """What each step does, by component: elements of a component are those of its boxes in
    order."""
    return tuple(
        (one, tuple(act.flows for act in best_acts(one.component))) for one in found.placed
    )
