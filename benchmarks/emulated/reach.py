"""What links reach, from messages of the executor's own network between two hosts: never from step
times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.emulated.ranks import Ranks
from benchmarks.emulated.settings import HOSTS, Reach
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import algorithms_for
from shardwright.collectives.cheapest_algorithm import collective_seconds
from shardwright.collectives.groups.span_members_by_network_tier import span_of
from shardwright.hardware.link_and_network_tier import Tier

SIZES: Final = (64, 262144, 1048576, 4194304)
BUFFERS: Final = (262144, 4194304)
_TIMES: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A collective as measured, and as the package prices it on the calibrated link."""

    mbit: float
    kind: str
    devices: int
    size: int
    measured_s: float
    priced_s: float


def fit_reach(points: Mapping[int, float], *, mbit: float) -> Reach:
    """Latency and share of the rate, by least squares of relative errors.

        seconds = latency + bytes / (efficiency x rate)

    Args:
        points: bytes -> seconds.
    """
    sizes, seconds = np.array(list(points), dtype=float), np.array(list(points.values()))
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) / seconds[:, None]
    latency, a_byte = np.linalg.lstsq(columns, np.ones_like(seconds), rcond=None)[0]
    return Reach(latency_s=float(latency), efficiency=float(1.0 / (a_byte * mbit * 1e6 / 8)))


def measured(ranks: Ranks, kind: str, *, devices: int, sizes: tuple[int, ...]) -> dict[int, float]:
    """Median seconds by bytes, of the slowest rank;
    of a message one way, half of there and back.
    """
    command: dict[str, Any] = {
        "do": "measure",
        "kind": kind,
        "devices": devices,
        "sizes": sizes,
        "times": _TIMES,
    }
    ranks.tell([command] * HOSTS)
    answers = ranks.hear()[:devices]
    found = {}
    for size in sizes:
        runs = zip(*(answer[str(size)] for answer in answers), strict=True)
        found[size] = median(max(run) for run in runs)
        if kind == "send":
            found[size] = median(answers[0][str(size)]) / 2
    return found


def reach_of(ranks: Ranks, *, mbit: float) -> Reach:
    """Of a message between two hosts whose cards have this rate."""
    return fit_reach(measured(ranks, "send", devices=2, sizes=SIZES), mbit=mbit)


def collectives(ranks: Ranks, reach: Reach, *, mbit: float) -> list[Priced]:
    """All_reduce and all_gather of two and four hosts against their price on such links."""
    found = []
    for kind in (Collective.ALL_REDUCE, Collective.ALL_GATHER):
        for devices in (2, HOSTS):
            link = Tier(
                name="card",
                num_devices=devices,
                bandwidth=reach.efficiency * mbit * 1e6 / 8,
                latency_s=reach.latency_s,
            )
            span = span_of(
                (Tier(name="host", num_devices=1, bandwidth=1e12, latency_s=0.0), link),
                ((np.array([devices]), np.array([1])),),
            )
            for size, seconds in measured(
                ranks, kind.value, devices=devices, sizes=BUFFERS
            ).items():
                algorithms = algorithms_for(kind, library="messages")
                priced = float(
                    collective_seconds(
                        kind, volume=np.array([float(size)]), span=span, algorithms=algorithms
                    )[0][0]
                )
                found.append(
                    Priced(
                        mbit=mbit,
                        kind=kind.value,
                        devices=devices,
                        size=size,
                        measured_s=seconds,
                        priced_s=priced,
                    )
                )
    return found
