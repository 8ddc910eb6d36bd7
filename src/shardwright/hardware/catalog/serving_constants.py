"""Constants of serving that no kernel table gives: few, each of a host or a fabric; none of a model, an engine or a version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConstants:
    """Seconds of hosts and of captured graphs.

    Args:
        replayed_launch_s: of a small kernel in a captured graph beside the bytes that it moves. host_launch_s: of the host for each kernel
            that it launches itself; host_piece_s: for each piece of a captured graph and the attention core behind it.
        host_iteration_s: of the host for an iteration: scheduling, inputs, handing out tokens. host_sequence_s: of it for each request.
    """

    replayed_launch_s: float = 3.0e-6
    host_launch_s: float = 8e-6
    host_piece_s: float = 60e-6
    host_iteration_s: float = 1.5e-3
    host_sequence_s: float = 5e-6


SERVING: Final = ServingConstants()
