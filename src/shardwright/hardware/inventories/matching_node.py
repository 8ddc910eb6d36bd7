"""The node of the catalog that fits some facts: the accelerator's name or the instance type, the
user's own statement, and the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.accelerator_generations import generation_of
from shardwright.hardware.catalog.accelerators_by_name import accelerator_names, find_accelerator
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.catalog.default_nodes import is_over_pcie, node_of
from shardwright.hardware.cluster import NodeKind
from shardwright.hardware.inventories.accelerator_names import (
    accelerators_called,
    devices_meant,
    links_found,
    nvlink_of,
    unknown_product,
)
from shardwright.hardware.inventories.merge_inventories import contradiction
from shardwright.hardware.inventories.node_facts import Assumed, Found, Links, What
from shardwright.lazy_dataclass import dataclass

SAME_MEMORY: Final = 0.1
"""Part by which a device's memory may differ from the catalog's: that is what a program may
allocate."""
GIVEN: Final = "--accelerator"
_NAME_IT: Final = "--accelerator h100-sxm, or an instance, says what the nodes are"
Facts = Mapping[What, Found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A node of the catalog, the key and name that a cluster file calls it by, and what of that is
    assumed.

    Args:
        product: the accelerator's name, where somebody gave it.
    """

    base: NodeKind
    key: str
    name: str
    assumed: tuple[Assumed, ...] = ()
    product: Found | None = None


def choose(facts: Facts, *, given: Mapping[str, str]) -> Chosen:
    """The catalog's node that the facts are of.

    Args:
        given: accelerators or instances by a product's word, or by "" for nodes whose files do not
            say.

    Raises:
        ClusterError: nobody says what the accelerator is, the catalog has none of its name, or
        facts contradict each other.
    """
    product = facts.get(What.PRODUCT)
    word = str(product.value) if product else ""
    told = given.get(word) or given.get("")
    chosen = (
        _of_given(told, facts, by_word=word in given)
        if told
        else _of_instance(facts) or _of_product(facts)
    )
    instance = facts.get(What.INSTANCE)
    if instance is not None and find_instance(str(instance.value)) is None:
        unknown = Assumed(
            "node", chosen.base.name, f"the catalog has no instance {instance.words[:60]!r}"
        )
        chosen = replace(chosen, assumed=(*chosen.assumed, unknown))
    _require_device(chosen.base.accelerator, facts)
    return chosen


def takes(name: str, facts: Facts) -> bool:
    """An accelerator or instance that somebody names may be that of nodes whose files do not say,
    or leave it open.
    """
    device, kind = find_accelerator(name), find_instance(name)
    named = device or (kind.accelerator if kind is not None else None)
    meant = devices_meant(facts)
    return not meant or named is None or named.name in {one.name for one in meant}


def _of_given(name: str, facts: Facts, *, by_word: bool) -> Chosen:
    """The accelerator that the user states. Raises where the files state another one."""
    device, kind = find_accelerator(name), find_instance(name)
    if device is None and kind is None:
        hint = nearest(name[:60], (*accelerator_names(), *instance_names()))
        raise ClusterError(f"{GIVEN} {name[:60]!r} is no accelerator or instance", hint=hint)
    base = node_of(device) if device is not None else kind
    assert base is not None
    product, instance = facts.get(What.PRODUCT), facts.get(What.INSTANCE)
    said = Found(
        What.PRODUCT,
        name,
        f"{GIVEN}, for {product.words[:60]!r} in {product.where}" if product else GIVEN,
    )
    called = accelerators_called(str(product.value)) if product is not None else ()
    if product is not None and called and not by_word:
        _require_among(base.accelerator, called, product, replace(said, where=GIVEN))
    sold = find_instance(str(instance.value)) if instance is not None else None
    if instance is not None and sold is not None and sold.accelerator != base.accelerator:
        raise contradiction(
            said,
            replace(instance, what=What.PRODUCT, value=f"{sold.accelerator.name} of {sold.name}"),
        )
    return Chosen(
        base=base,
        key="accelerator" if device is not None else "instance",
        name=device.name if device is not None else base.name,
        product=said,
    )


def _of_instance(facts: Facts) -> Chosen | None:
    """An instance of the catalog, whose accelerator must be the one that the files name; None = not
    said, or not in the catalog.
    """
    instance, product = facts.get(What.INSTANCE), facts.get(What.PRODUCT)
    kind = find_instance(str(instance.value)) if instance is not None else None
    if instance is None or kind is None:
        return None
    called = accelerators_called(str(product.value)) if product is not None else ()
    if product is not None and called:
        said = replace(instance, what=What.PRODUCT, value=f"{kind.accelerator.name} of {kind.name}")
        _require_among(kind.accelerator, called, product, said)
    return Chosen(base=kind, key="instance", name=kind.name)


def _of_product(facts: Facts) -> Chosen:
    """The usual node of the accelerator that the files name; of several that its name may mean, the
    likeliest of that memory.
    """
    product, instance = facts.get(What.PRODUCT), facts.get(What.INSTANCE)
    if product is None:
        if instance is not None:
            hint = f"{nearest(instance.words[:60], instance_names())}; or {_NAME_IT}"
            raise ClusterError(
                f"{instance.where}: unknown instance type {instance.words[:60]!r}, and no"
                " accelerator is named",
                hint=hint,
            )
        where = facts[What.DEVICES].where if What.DEVICES in facts else "the files"
        raise ClusterError(f"{where}: which accelerators the nodes have is not said", hint=_NAME_IT)
    called = accelerators_called(str(product.value))
    if not called:
        raise unknown_product(str(product.value), where=product.where)
    fitting = _of_links(_of_memory(called, facts, product), facts)
    others = ", ".join(device.name for device in fitting[1:])
    assumed = (
        (
            Assumed(
                What.PRODUCT,
                fitting[0].name,
                f"{product.words[:60]!r} may be {others} too; {GIVEN} says which",
            ),
        )
        if others
        else ()
    )
    return Chosen(
        base=node_of(fitting[0]), key="accelerator", name=fitting[0].name, assumed=assumed
    )


def _require_among(
    device: Accelerator, called: tuple[Accelerator, ...], one: Found, other: Found
) -> None:
    if device.name not in {known.name for known in called}:
        raise contradiction(one, other)


def _of_memory(
    called: tuple[Accelerator, ...], facts: Facts, product: Found
) -> tuple[Accelerator, ...]:
    """Accelerators whose memory matches the reported size within a tolerance."""
    memory = facts.get(What.DEVICE_MEMORY)
    if memory is None:
        return called
    size = float(str(memory.value))
    fitting = tuple(
        device for device in called if abs(size / device.memory_bytes - 1) <= SAME_MEMORY
    )
    if not fitting:
        where = f"{called[0].name}, for {product.words[:60]} in {product.where}"
        raise contradiction(replace(memory, value=called[0].memory_bytes, where=where), memory)
    return fitting


def _of_links(called: tuple[Accelerator, ...], facts: Facts) -> tuple[Accelerator, ...]:
    """Accelerators with as many NVLinks as were found, or that reach each other over PCIe where
    none were found; all where none of them match.
    """
    links, devices = links_found(facts), facts.get(What.DEVICES)
    if links is not None and isinstance(links.value, Links):
        alike = tuple(
            device for device in called if (link := nvlink_of(device)) and link.links in links.value
        )
    elif What.ISLANDS in facts and devices is not None and devices.value != 1:
        alike = tuple(device for device in called if is_over_pcie(node_of(device)))
    else:
        alike = ()
    return alike or called


def _require_device(device: Accelerator, facts: Facts) -> None:
    """Raise where what was seen of a device is not of this one."""
    compute, links = facts.get(What.COMPUTE), links_found(facts)
    generation = generation_of(device)
    if (
        compute is not None
        and generation
        and isinstance(compute.value, int)
        and compute.value // 10 != generation
    ):
        raise contradiction(Found(What.COMPUTE, f"{generation}.x", device.name), compute)
    most = nvlink_of(device)
    if links is not None and links.what is What.XGMI and most is None and device.vendor == "AMD":
        return  # its links are not in the table of links
    if links is not None and isinstance(links.value, Links) and not links_of(device, links.value):
        raise contradiction(
            Found(links.what, f"at most {most.links} links" if most else "0 links", device.name),
            links,
        )


def links_of(device: Accelerator, links: Links) -> int:
    """NVLinks of a device: what its peers have together, or, where it has not so many, those to a
    switch; 0 = it has none, or fewer.
    """
    most = nvlink_of(device)
    return next(
        (
            count
            for count in (links.total, links.peer)
            if most is not None and 0 < count <= most.links
        ),
        0,
    )
