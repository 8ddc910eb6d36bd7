"""The protocol that every collective algorithm follows."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from shardwright.arrays import FloatArray
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.errors import UsageError


class Collective(StrEnum):
    """Kinds of collective communication; their volume is the full buffer.

    `volume` is always the full buffer in bytes: the output of an all_gather, the input of a
    reduce_scatter or all_reduce, and one member's whole buffer of an all_to_all, broadcast,
    scatter, gather or send.
    """

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SCATTER = "scatter"
    GATHER = "gather"
    SEND = "send"


class CollectiveAlgorithm(Protocol):
    """A collective algorithm: its seconds and bytes for the collectives that it can run.

    Attributes:
        name: registry name.
        kinds: the collectives that it can run.
    """

    # Properties, so that frozen dataclasses are members of the protocol.
    @property
    def name(self) -> str:
        """Name of the algorithm in the registry."""
        ...

    @property
    def kinds(self) -> frozenset[Collective]:
        """The collectives that the algorithm can run."""
        ...

    def seconds(self, kind: Collective, *, volume: FloatArray, span: Span) -> FloatArray:
        """Uncontended seconds for each group of `span`; inf where the algorithm does not apply.

        0 for groups of one member.

        Args:
            volume: bytes of the full buffer on the wire, shape (n,).
        """
        ...

    def wire_bytes(
        self, kind: Collective, *, volume: FloatArray, span: Span
    ) -> tuple[FloatArray, ...]:
        """Bytes that the busiest member sends over each tier's links, innermost tier first.

        A message that crosses network tier k also passes the links of network tiers 1 .. k-1 and is
        counted there; the island's links (tier 0) carry only what stays in the island. Divided by a
        tier's bandwidth it is that link's busy time.
        """
        ...


def require_kind(algorithm: CollectiveAlgorithm, kind: Collective) -> None:
    """Raise UsageError if the algorithm cannot run collectives of kind `kind`."""
    if kind not in algorithm.kinds:
        raise UsageError(
            f"algorithm {algorithm.name} cannot run {kind.value}",
            hint="it runs " + ", ".join(sorted(k.value for k in algorithm.kinds)),
        )
