"""The text that names a cluster: an expression, a file or YAML text, and scale factors behind it.

``h100-sxm:64,network=0.5x,memory=2x`` has half the bandwidth of each network card and twice the
memory of each device; ``cluster.yaml,price=1.5x`` is the cluster of a file at higher prices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.catalog.list_prices import GIVE_A_PRICE, with_prices
from shardwright.hardware.cluster import Cluster, NodeGroup
from shardwright.hardware.scale_network_limit_devices_reserve_memory import scale_network
from shardwright.hardware.zone_link_record_and_price_checks import checked_price

NETWORK: Final = "network"
MEMORY: Final = "memory"
PRICE: Final = "price"
SCALED: Final = (NETWORK, MEMORY, PRICE)
"""Quantities that have a factor: bandwidth of each network card, memory of each device, dollars of
each device-hour."""
MAX_FACTOR: Final = 1000.0
FILE_ENDINGS: Final = (".yaml", ".yml", ".json")
_YAML_START: Final = re.compile(r"\{|(name|nodes|accelerators|fabric|links|reliability)\s*:")
_FACTOR: Final = re.compile(r"\s*([A-Za-z_-]{1,40})\s*=\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*[xX]\s*")
_NAMED: Final = re.compile(rf"\s*({'|'.join(SCALED)})\s*=.*", re.DOTALL)
Factors = Mapping[str, Decimal]
"""Factors by the quantities of `SCALED`; a quantity that is missing has the factor 1."""
_NONE: Final[Factors] = MappingProxyType({})


def is_cluster_yaml(text: str) -> bool:
    """True if a cluster's text is YAML itself, not a file path or an expression."""
    stripped = text.strip()
    return "\n" in stripped or _YAML_START.match(stripped) is not None


def is_cluster_file(text: str) -> bool:
    """True if a cluster's text without factors is a file path (by its ending) or YAML text."""
    return is_cluster_yaml(text) or text.strip().lower().endswith(FILE_ENDINGS)


def split_scale_factors(text: str) -> tuple[str, Factors]:
    """Split a cluster's text into (text before factors, {network, memory, price: factor} if given).

    YAML text has no factors.

    Raises:
        ClusterError: a factor is no positive number with an x, is too large, has an unknown name,
            or is given twice.
    """
    if is_cluster_yaml(text):
        return text, _NONE
    *parts, last = text.split(",")
    factors: dict[str, Decimal] = {}
    while parts and (_FACTOR.fullmatch(last) or _NAMED.fullmatch(last)):
        name, factor = _parse_factor(last)
        if name in factors:
            raise ClusterError(f"two factors of the {name}", hint=f"one: {name}=2x")
        factors[name] = factor
        last = parts.pop()
    return (",".join([*parts, last]), MappingProxyType(factors)) if factors else (text, _NONE)


def _parse_factor(part: str) -> tuple[str, Decimal]:
    """Parse ``network=0.5x`` into (name, factor); ClusterError if unknown or out of range."""
    found = _FACTOR.fullmatch(part)
    if found is None:
        raise ClusterError(f"{part.strip()[:60]!r} is no factor", hint="such as network=0.5x")
    name, factor = found[1].lower(), Decimal(found[2])
    if name not in SCALED:
        raise ClusterError(
            f"{part.strip()[:60]!r}: a cluster has no factor of that name",
            hint=nearest(name, SCALED),
        )
    if not 0 < factor <= MAX_FACTOR:
        raise ClusterError(
            f"a factor {found[2]} of the {name}",
            hint=f"above 0 and at most {MAX_FACTOR:g}: {name}=0.5x",
        )
    return name, factor


def factors_text(factors: Factors) -> str:
    """Factors as written behind a cluster's text (``,network=0.5x``); those of 1 are left out."""
    return "".join(
        f",{name}={factors[name].normalize():f}x"
        for name in SCALED
        if factors.get(name, Decimal(1)) != 1
    )


def multiply_factor(text: str, *, name: str, factor: float) -> str:
    """Cluster text with the factor `name` (1 if absent) times `factor`; ClusterError for YAML text.

    Raises:
        ClusterError: the text is YAML, which has no factors, or the product is out of range.
    """
    if is_cluster_yaml(text):
        raise ClusterError(
            "a cluster that is given as YAML text has no scale factors",
            hint="write it to a file: cluster.yaml,network=0.5x",
        )
    base, factors = split_scale_factors(text)
    product = factors.get(name, Decimal(1)) * Decimal(repr(factor))
    changed = base + factors_text({**factors, name: round(product, 9)})
    split_scale_factors(changed)
    return changed


def scale_cluster(cluster: Cluster, factors: Factors) -> Cluster:
    """Multiply network bandwidth, memory and prices (own or list) of a cluster by given factors.

    Prices are the cluster's own, or list prices.

    Raises:
        ClusterError: the cluster has no price to multiply, or a product is out of range.
    """
    if not factors:
        return cluster
    scaled = replace(cluster, expression=cluster.expression + factors_text(factors))
    if NETWORK in factors:
        scaled = scale_network(scaled, factor=float(factors[NETWORK]))
    if PRICE in factors:
        scaled = with_prices(scaled)
    memory, price = factors.get(MEMORY), factors.get(PRICE)
    groups = scaled.groups
    if memory is not None:
        groups = tuple(_with_memory(group, factor=memory) for group in groups)
    if price is not None:
        groups = tuple(_with_price(group, factor=float(price)) for group in groups)
    return replace(scaled, groups=groups)


def _with_memory(group: NodeGroup, *, factor: Decimal) -> NodeGroup:
    """Node group whose devices have `factor` times as many bytes of memory."""
    accelerator = group.kind.accelerator
    memory_bytes = int(accelerator.memory_bytes * factor)
    if memory_bytes < 1:
        raise ClusterError(
            f"a factor {factor} leaves no memory on {accelerator.name}", hint="memory=0.5x"
        )
    changed = replace(accelerator, memory_bytes=memory_bytes)
    return replace(group, kind=replace(group.kind, accelerator=changed))


def _with_price(group: NodeGroup, *, factor: float) -> NodeGroup:
    """Node group whose devices cost `factor` times the dollars; ClusterError without a price."""
    if not group.price:
        raise ClusterError(
            f"no price of {group.kind.accelerator.name} to multiply",
            hint=f"name it: {group.kind.accelerator.name}:8/2.5usd, or {GIVE_A_PRICE}",
        )
    what = f"{group.kind.accelerator.name} at {factor:g} times its price"
    return replace(group, price=checked_price(group.price * factor, what=what))
