"""Choice of the catalog's node that matches the found facts and the user's `--accelerator`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.accelerators_by_name import accelerator_names, find_accelerator
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.catalog.compute_capability_by_gpu import generation_of
from shardwright.hardware.catalog.default_nodes import default_node, is_over_pcie
from shardwright.hardware.cluster import NodeKind
from shardwright.hardware.inventories.accelerator_names import (
    accelerators_by_name,
    nvlink_fact,
    nvlink_of,
    possible_accelerators,
    unknown_product_error,
)
from shardwright.hardware.inventories.merge_inventories import contradiction_error
from shardwright.hardware.inventories.node_facts import Assumption, DeviceLinks, FactKind, FoundFact
from shardwright.lazily_compiled_dataclass import dataclass

SAME_MEMORY: Final = 0.1
"""Relative difference allowed between a device's memory and the catalog's, which is the memory that
a program may allocate.
"""
GIVEN: Final = "--accelerator"
_NAME_IT: Final = "--accelerator h100-sxm, or an instance, says what the nodes are"
Facts = Mapping[FactKind, FoundFact]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogNode:
    """Node of the catalog, its key and name in a cluster file, and the assumptions behind it.

    Args:
        product: the accelerator's name, where the user stated one.
    """

    base: NodeKind
    key: str
    name: str
    assumed: tuple[Assumption, ...] = ()
    product: FoundFact | None = None


def choose_catalog_node(facts: Facts, *, given: Mapping[str, str]) -> CatalogNode:
    """Catalog node by the user's choice, else by instance type, else by product name.

    Args:
        given: accelerators or instances by a product's word, or by "" for nodes whose files do not
            state one.

    Raises:
        ClusterError: the accelerator is not stated, the catalog has none of its name, or facts
            contradict each other.
    """
    product = facts.get(FactKind.PRODUCT)
    word = str(product.value) if product else ""
    told = given.get(word) or given.get("")
    chosen = (
        _node_by_user(told, facts, by_word=word in given)
        if told
        else _node_by_instance(facts) or _node_by_product(facts)
    )
    instance = facts.get(FactKind.INSTANCE)
    if instance is not None and find_instance(str(instance.value)) is None:
        unknown = Assumption(
            "node", chosen.base.name, f"the catalog has no instance {instance.words[:60]!r}"
        )
        chosen = replace(chosen, assumed=(*chosen.assumed, unknown))
    _require_matching_device(chosen.base.accelerator, facts)
    return chosen


def may_have_accelerator(name: str, facts: Facts) -> bool:
    """True if the facts name no accelerator, or may mean that of `name` (or its instance).

    Facts that leave the accelerator open allow every name.
    """
    device, kind = find_accelerator(name), find_instance(name)
    named = device or (kind.accelerator if kind is not None else None)
    meant = possible_accelerators(facts)
    return not meant or named is None or named.name in {one.name for one in meant}


def _node_by_user(name: str, facts: Facts, *, by_word: bool) -> CatalogNode:
    """Catalog node that a user names; ClusterError if facts disagree (product unless `by_word`)."""
    device, kind = find_accelerator(name), find_instance(name)
    if device is None and kind is None:
        hint = nearest(name[:60], (*accelerator_names(), *instance_names()))
        raise ClusterError(f"{GIVEN} {name[:60]!r} is no accelerator or instance", hint=hint)
    base = default_node(device) if device is not None else kind
    assert base is not None
    product, instance = facts.get(FactKind.PRODUCT), facts.get(FactKind.INSTANCE)
    said = FoundFact(
        FactKind.PRODUCT,
        name,
        f"{GIVEN}, for {product.words[:60]!r} in {product.where}" if product else GIVEN,
    )
    called = accelerators_by_name(str(product.value)) if product is not None else ()
    if product is not None and called and not by_word:
        _require_among(base.accelerator, called, product, replace(said, where=GIVEN))
    sold = find_instance(str(instance.value)) if instance is not None else None
    if instance is not None and sold is not None and sold.accelerator != base.accelerator:
        raise contradiction_error(
            said,
            replace(
                instance, what=FactKind.PRODUCT, value=f"{sold.accelerator.name} of {sold.name}"
            ),
        )
    return CatalogNode(
        base=base,
        key="accelerator" if device is not None else "instance",
        name=device.name if device is not None else base.name,
        product=said,
    )


def _node_by_instance(facts: Facts) -> CatalogNode | None:
    """Node of the facts' instance type, None if unknown; ClusterError if the product differs.

    The instance's accelerator must be the one that the files name.
    """
    instance, product = facts.get(FactKind.INSTANCE), facts.get(FactKind.PRODUCT)
    kind = find_instance(str(instance.value)) if instance is not None else None
    if instance is None or kind is None:
        return None
    called = accelerators_by_name(str(product.value)) if product is not None else ()
    if product is not None and called:
        said = replace(
            instance, what=FactKind.PRODUCT, value=f"{kind.accelerator.name} of {kind.name}"
        )
        _require_among(kind.accelerator, called, product, said)
    return CatalogNode(base=kind, key="instance", name=kind.name)


def _node_by_product(facts: Facts) -> CatalogNode:
    """Default node of the likeliest accelerator that the files name; ClusterError if unknown.

    Of several accelerators that the name may mean, it is the likeliest with that memory and those
    links.
    """
    product, instance = facts.get(FactKind.PRODUCT), facts.get(FactKind.INSTANCE)
    if product is None:
        if instance is not None:
            hint = f"{nearest(instance.words[:60], instance_names())}; or {_NAME_IT}"
            raise ClusterError(
                f"{instance.where}: unknown instance type {instance.words[:60]!r}, and no"
                " accelerator is named",
                hint=hint,
            )
        where = facts[FactKind.DEVICES].where if FactKind.DEVICES in facts else "the files"
        raise ClusterError(f"{where}: which accelerators the nodes have is not said", hint=_NAME_IT)
    called = accelerators_by_name(str(product.value))
    if not called:
        raise unknown_product_error(str(product.value), where=product.where)
    fitting = _matching_links(_matching_memory(called, facts, product), facts)
    others = ", ".join(device.name for device in fitting[1:])
    assumed = (
        (
            Assumption(
                FactKind.PRODUCT,
                fitting[0].name,
                f"{product.words[:60]!r} may be {others} too; {GIVEN} says which",
            ),
        )
        if others
        else ()
    )
    return CatalogNode(
        base=default_node(fitting[0]), key="accelerator", name=fitting[0].name, assumed=assumed
    )


def _require_among(
    device: Accelerator, called: tuple[Accelerator, ...], one: FoundFact, other: FoundFact
) -> None:
    """Raise a contradiction of two facts unless `device` is among the accelerators `called`."""
    if device.name not in {known.name for known in called}:
        raise contradiction_error(one, other)


def _matching_memory(
    called: tuple[Accelerator, ...], facts: Facts, product: FoundFact
) -> tuple[Accelerator, ...]:
    """Accelerators with memory within 10 % of the fact's, all without a fact; error if none."""
    memory = facts.get(FactKind.DEVICE_MEMORY)
    if memory is None:
        return called
    size = float(str(memory.value))
    fitting = tuple(
        device for device in called if abs(size / device.memory_bytes - 1) <= SAME_MEMORY
    )
    if not fitting:
        where = f"{called[0].name}, for {product.words[:60]} in {product.where}"
        raise contradiction_error(
            replace(memory, value=called[0].memory_bytes, where=where), memory
        )
    return fitting


def _matching_links(called: tuple[Accelerator, ...], facts: Facts) -> tuple[Accelerator, ...]:
    """Accelerators with as many NVLinks as found, or over PCIe if without links; all if none.

    Where no NVLinks were found, accelerators that reach each other over PCIe.
    """
    links, devices = nvlink_fact(facts), facts.get(FactKind.DEVICES)
    if links is not None and isinstance(links.value, DeviceLinks):
        alike = tuple(
            device for device in called if (link := nvlink_of(device)) and link.links in links.value
        )
    elif FactKind.ISLANDS in facts and devices is not None and devices.value != 1:
        alike = tuple(device for device in called if is_over_pcie(default_node(device)))
    else:
        alike = ()
    return alike or called


def _require_matching_device(device: Accelerator, facts: Facts) -> None:
    """Raise ClusterError if the found compute capability or links are not this device's."""
    compute, links = facts.get(FactKind.COMPUTE), nvlink_fact(facts)
    generation = generation_of(device)
    if (
        compute is not None
        and generation
        and isinstance(compute.value, int)
        and compute.value // 10 != generation
    ):
        raise contradiction_error(
            FoundFact(FactKind.COMPUTE, f"{generation}.x", device.name), compute
        )
    most = nvlink_of(device)
    if (
        links is not None
        and links.what is FactKind.XGMI
        and most is None
        and device.vendor == "AMD"
    ):
        return  # its links are not in the table of links
    if (
        links is not None
        and isinstance(links.value, DeviceLinks)
        and not device_link_count(device, links.value)
    ):
        raise contradiction_error(
            FoundFact(
                links.what, f"at most {most.links} links" if most else "0 links", device.name
            ),
            links,
        )


def device_link_count(device: Accelerator, links: DeviceLinks) -> int:
    """NVLinks of a device: total, else to one peer, whichever is within its number; 0 if neither.

    The count is the total over all peers, or, where that is more than the device has, the links to
    one peer (a switch).
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
