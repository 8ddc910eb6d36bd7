"""Lower bound from round trips of microbatches through a pipeline with few in flight.

Compiled, over plain numbers: bounds of cuts on equal devices (`search.joint`) and of stages on
unlike ones (`search.mixed`) share the bound.
"""

from __future__ import annotations

from shardwright.kernel_compilation import inner


@inner
def round_trips(trip: float, apart: float, each: float, microbatches: int, in_flight: int) -> float:
    """Lower bound of seconds from a stage's first forward to last backward; 0 if all in flight.

    One round trip after another; 0 if all microbatches are in flight at once.

        max over a of  a trip + (a - 1) apart + (m - 1 - (a - 1) q) each,   2 <= a, (a - 1) q < m

    In the stage's row the forward of microbatch k + q follows the backward of k, so a microbatch is
    back no sooner than a trip after the one that is q before it; between its other backwards lie
    the row's other actions. Linear in a: it is largest at the least or the most. Left out: actions
    before the stage and after its last backward (docs/decisions/0015 has the proof).

    Args:
        trip: seconds of one microbatch from its forward on the stage to its backward's end there,
            both included.
        apart: from a backward's end to where the next forward may start.
        each: least seconds from one backward's end to the next one's, while forwards are left.
        microbatches: m.
        in_flight: q, forwards that stand before the stage's first backward.
    """
    if in_flight >= microbatches:
        return 0.0
    turns = 1 if trip + apart <= in_flight * each else (microbatches - 1) // in_flight
    return trip + turns * (trip + apart) + (microbatches - 1 - turns * in_flight) * each
