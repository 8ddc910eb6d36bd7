"""Seconds of the cheapest legal algorithm for each group of devices.

The entry point for all callers outside this layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import (
    Collective,
    CollectiveAlgorithm,
)
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import Line, LinearAlgorithm
from shardwright.collectives.algorithm_registry import algorithms_for
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities, span_quantities
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.errors import RuntimeModelError
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Legal algorithms of one collective on one span, with which any volume can be priced.

    Args:
        kind: the collective.
        quantities: the groups, prepared for pricing.
        algorithms: the algorithms that the indices of `seconds` refer to.
        lines: alpha and beta of each over the different groups; None where the time is not
            linear in the volume.
    """

    kind: Collective
    quantities: SpanQuantities
    algorithms: tuple[CollectiveAlgorithm, ...]
    lines: tuple[Line | None, ...]

    def seconds(self, volume: FloatArray) -> tuple[FloatArray, IntArray]:
        """(cheapest algorithm's seconds by group, index in `algorithms`); (inf, 0) if none legal.

        Args:
            volume: bytes of the full buffer on the wire, shape (n,) or (1,).
        """
        volume = np.asarray(volume, dtype=np.float64)
        best = self._seconds_of_algorithm(0, volume)
        chosen = np.zeros(best.shape, dtype=np.int64)
        for index in range(1, len(self.algorithms)):
            candidate = self._seconds_of_algorithm(index, volume)
            better = candidate < best
            np.putmask(chosen, better, index)
            np.minimum(best, candidate, out=best)
        return best, chosen

    def _seconds_of_algorithm(self, index: int, volume: FloatArray) -> FloatArray:
        """Seconds of algorithm `index` for each group with `volume` bytes; inf where illegal."""
        line = self.lines[index]
        if line is None:
            return self.algorithms[index].seconds(
                self.kind, volume=volume, span=self.quantities.span
            )
        return line.at(volume, rows=self.quantities.rows)


def price_list(
    kind: Collective,
    *,
    span: Span | SpanQuantities,
    algorithms: Sequence[CollectiveAlgorithm] | None = None,
) -> PriceList:
    """Alpha and beta by group of each algorithm that can run `kind`; None means all registered.

    Args:
        span: the groups; prepared by `span_quantities` where a span is priced for several kinds.
        algorithms: algorithms that may be used; None = all registered ones. Those that cannot run
            `kind` are left out.
    """
    usable = (
        algorithms_for(kind)
        if algorithms is None
        else tuple(a for a in algorithms if kind in a.kinds)
    )
    if not usable:
        raise RuntimeModelError(
            f"none of the algorithms given can run {kind.value}",
            hint="registered for it: " + ", ".join(a.name for a in algorithms_for(kind)),
        )
    quantities = span_quantities(span) if isinstance(span, Span) else span
    return PriceList(
        kind=kind,
        quantities=quantities,
        algorithms=usable,
        lines=tuple(_line(a, kind, quantities) for a in usable),
    )


def _line(
    algorithm: CollectiveAlgorithm, kind: Collective, quantities: SpanQuantities
) -> Line | None:
    """Alpha and beta of an algorithm for each group; None where its time is not linear in bytes."""
    return algorithm.line(kind, quantities) if isinstance(algorithm, LinearAlgorithm) else None


def collective_seconds(
    kind: Collective,
    *,
    volume: FloatArray,
    span: Span | SpanQuantities,
    algorithms: Sequence[CollectiveAlgorithm] | None = None,
) -> tuple[FloatArray, IntArray]:
    """(uncontended seconds of the cheapest algorithm by group, its index); (inf, 0) where illegal.

    min over algorithms of (alpha + V beta); 0 for groups of one member; inf where no algorithm is
    legal.

    Args:
        volume: bytes of the full buffer on the wire (see `Collective`), shape (n,).
        span: the groups; prepared by `span_quantities` where a span is priced several times.
        algorithms: algorithms that may be used, such as `algorithms_for(kind, library="nccl")`;
            None = all registered ones.

    Returns:
        seconds, and the index into `price_list(kind, span=span, algorithms=algorithms).algorithms`,
        each of shape (n,).
    """
    return price_list(kind, span=span, algorithms=algorithms).seconds(volume)
