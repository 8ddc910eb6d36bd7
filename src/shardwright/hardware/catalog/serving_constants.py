"""Constants of serving that no kernel table gives: few, each of a host, a fabric or a class of kernels; none of a model, an engine or a
version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardwright.hardware.catalog.constants import SHIPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConstants:
    """Seconds of hosts and of captured graphs, and what kernels take in a running engine over what they take alone.

    Args:
        replayed_launch_s: of a small kernel in a captured graph beside the bytes that it moves. host_launch_s: of the host for each kernel
            that it launches from Python, one after another; compiled_launch_s: from compiled code. host_piece_s: for each piece of compiled
            code, or of a captured graph, and the attention core behind it.
        products, experts, sums, answers, prompts: factors on the seconds of dense products, of routed experts, of sums over ranks, of the
            attention of answers and of that of prompts. Tables time one kernel again and again; in an engine each one finds the caches full of
            others' data, its experts' tokens unevenly spread, and the ranks of a sum not quite together.
        host_iteration_s: of the host for an iteration: scheduling, inputs, handing out tokens. host_sequence_s: of it for each request.
        request_s: of a request from its client to the queue and of its first token back: HTTP, tokenising, a process between.

    Sources: host_launch_s is what training's runs gave for the same work (`Constants.host_launch`); a graph's smallest kernels take two
    microseconds in the median of the tables of casts (docs/serving-kernels.md). The others are assumed, from orders of magnitude of
    Python's and CUDA's calls; none was fitted to a serving run.
    """

    replayed_launch_s: float = 2.0e-6
    host_launch_s: float = SHIPPED.host_launch
    compiled_launch_s: float = 10e-6
    host_piece_s: float = 80e-6
    host_iteration_s: float = 1.5e-3
    host_sequence_s: float = 5e-6
    request_s: float = 10e-3
    products: float = 1.0
    experts: float = 1.0
    sums: float = 1.0
    answers: float = 1.0
    prompts: float = 1.0


SERVING: Final = ServingConstants()
