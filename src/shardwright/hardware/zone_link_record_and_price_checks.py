"""Zones of a cluster (data centres, regions) and the links between them, with checks.

A link is one node's rate to the nodes of another zone, in one direction, as clouds sell it; traffic
between zones is paid by the gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Final

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.link_and_network_tier import Link
from shardwright.lazily_compiled_dataclass import dataclass

MAX_ZONES: Final = 64
MAX_DOLLARS: Final = 1000.0
"""Most dollars that a device costs in an hour; a higher number has another unit (a node's price, a
month's).
"""


MAX_EGRESS: Final = 10.0
"""Most dollars that a cloud charges for 10^9 bytes; a higher number has another unit (a terabyte's
price, a month's).
"""
MAX_LATENCY_S: Final = 10.0
"""Most seconds that a link takes; a higher number has another unit (microseconds given as
milliseconds).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneLink:
    """Link of one node of a zone to the nodes of another zone, in one direction.

    Args:
        source, target: names of the zones.
        link: of one node, all its devices together.
        egress: dollars for 10^9 bytes that leave.
    """

    source: str
    target: str
    link: Link
    egress: float = 0.0


def checked_links(zones: Iterable[str], links: Iterable[ZoneLink]) -> tuple[ZoneLink, ...]:
    """Links in the order of the zones; ClusterError unless each ordered pair has exactly one.

    Raises:
        ClusterError: a pair without a link or with two, a zone without nodes, links of a cluster
            without zones, too many zones, or a number that is impossible in its unit.
    """
    known = tuple(dict.fromkeys(zones))
    if len(known) > MAX_ZONES:
        raise ClusterError(f"{len(known)} zones", hint=f"at most {MAX_ZONES}")
    if len(known) > 1 and "" in known:
        raise ClusterError(
            "some nodes are in no zone and others are", hint="name a zone for all of them"
        )
    found: dict[tuple[str, str], ZoneLink] = {}
    for one in links:
        for name in (one.source, one.target):
            if name not in known or len(known) < 2:
                hint = (
                    nearest(name, known)
                    if len(known) > 1
                    else "name zones behind the nodes: h100-sxm:64@east"
                )
                raise ClusterError(
                    f"a link of zone {name[:60]!r}, which no nodes are in", hint=hint
                )
        if one.source == one.target:
            raise ClusterError(
                f"a link of zone {one.source[:60]!r} to itself",
                hint="nodes of a zone are joined by their cards",
            )
        _require_units(one)
        if (one.source, one.target) in found:
            raise ClusterError(
                f"two links from {one.source[:60]!r} to {one.target[:60]!r}",
                hint="one for each direction",
            )
        found[one.source, one.target] = one
    for pair in permutations(known, 2):
        if pair not in found:
            raise ClusterError(
                f"zones {pair[0][:60]!r} and {pair[1][:60]!r} have no link",
                hint=f"{pair[0][:60]}~{pair[1][:60]}=10gbps/30ms, or links: in a file",
            )
    return tuple(found[pair] for pair in permutations(known, 2))


def _require_units(link: ZoneLink) -> None:
    """Raise ClusterError for a link latency or egress price outside its range: a wrong unit."""
    name = f"the link from {link.source[:60]!r} to {link.target[:60]!r}"
    if not 0.0 <= link.link.latency_s <= MAX_LATENCY_S:
        raise ClusterError(
            f"{name}: a latency of {link.link.latency_s:g} s",
            hint=f"in ms, up to {MAX_LATENCY_S * 1e3:g}: 60ms",
        )
    if not 0.0 <= link.egress <= MAX_EGRESS:
        raise ClusterError(
            f"{name}: {link.egress:g} dollars for a gigabyte that leaves",
            hint=f"dollars of 10^9 bytes (not of 10^12), up to {MAX_EGRESS:g}",
        )


def checked_price(dollars: float, *, what: str) -> float:
    """Return the dollars of a device-hour; ClusterError if not above 0 or beyond the maximum."""
    if not 0.0 < dollars <= MAX_DOLLARS:
        raise ClusterError(
            f"{what}: {dollars:g} dollars for a device and hour",
            hint=f"dollars of one device (not of a node) in one hour, up to {MAX_DOLLARS:g}",
        )
    return dollars
