"""Restriction of a runtime's options to those that the cluster's devices can run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from shardwright.errors import RuntimeModelError
from shardwright.runtime.framework_description import Offer, Runtime
from shardwright.runtime.option_vocabulary import BY_NAME


def restrict_to_devices(
    runtime: Runtime,
    *,
    kernels: frozenset[str],
    called: str,
    vendors: Mapping[str, str],
    written: Mapping[str, str] = MappingProxyType({}),
) -> Runtime:
    """Runtime with offers and defaults that the devices can run; RuntimeModelError if one is set.

    Returns the same object where the devices support every value.

    A default that the devices do not support is replaced by the value before it in the vocabulary.

    Args:
        kernels: names of the kernels that every device has.
        called: name of a device with the fewest kernels.
        vendors: vendors of the devices, where known -> name of a device of each.
        written: options that the user wrote, including those that equal the defaults.

    Raises:
        RuntimeModelError: a written option, or one set on the runtime, is not supported.
    """
    unsupported = tuple(
        offer
        for offer in runtime.offers
        if not _is_on_devices(offer, kernels=kernels, vendors=vendors)
    )
    if not unsupported:
        return runtime
    for offer in unsupported:
        if offer.value in (dict(runtime.options).get(offer.option), written.get(offer.option)):
            alternatives = " or ".join(
                f"{o.option}={o.value}"
                for o in runtime.offers
                if o.option == offer.option and o not in unsupported
            )
            of_vendor = BY_NAME[offer.option].vendors.get(offer.value, frozenset(vendors))
            unsupported_device = next(
                (device for vendor, device in vendors.items() if vendor not in of_vendor), ""
            )
            reason = (
                f"{unsupported_device} cannot run"
                if unsupported_device
                else f"{called} has no kernel for"
            )
            raise RuntimeModelError(
                f"{reason} {offer.option}={offer.value}",
                hint=alternatives or f"leave {offer.option} out",
            )
    restricted = replace(
        runtime, offers=tuple(offer for offer in runtime.offers if offer not in unsupported)
    )
    return _with_supported_defaults(
        restricted, tuple(offer for offer in unsupported if not BY_NAME[offer.option].of_device)
    )


def _is_on_devices(offer: Offer, *, kernels: frozenset[str], vendors: Collection[str]) -> bool:
    """True if the devices have the offer's kernel and are of a vendor that runs the offer."""
    option = BY_NAME[offer.option]
    if option.of_device and offer.value not in kernels:
        return False
    return offer.value not in option.vendors or option.vendors[offer.value].issuperset(vendors)


def _with_supported_defaults(runtime: Runtime, unsupported: Iterable[Offer]) -> Runtime:
    """Replace each unsupported default by the supported value before it in the vocabulary, or last.

    The replacement is the value before it in the vocabulary.
    """
    defaults, facts = dict(runtime.own), {fact.field: fact for fact in runtime.facts}
    values: dict[str, object] = {}
    set_here = dict(runtime.options)
    for offer in unsupported:
        value_order = list(BY_NAME[offer.option].values)
        alternatives = [
            candidate for candidate in runtime.offers if candidate.option == offer.option
        ]
        if defaults.get(offer.option) != offer.value or not alternatives:
            continue
        earlier = [
            candidate
            for candidate in alternatives
            if value_order.index(candidate.value) < value_order.index(offer.value)
        ] or alternatives
        replacement = max(earlier, key=lambda candidate: value_order.index(candidate.value))
        defaults[offer.option] = replacement.value
        if offer.option not in set_here:
            values |= dict(replacement.values)
            facts |= {fact.field: fact for fact in replacement.facts}
    if defaults == dict(runtime.own):
        return runtime
    options = tuple(pair for pair in runtime.options if defaults.get(pair[0]) != pair[1])
    name = " ".join(
        [runtime.base or runtime.name, *(f"{option}={value}" for option, value in options)]
    )
    return replace(
        runtime,
        **values,  # type: ignore[arg-type]
        own=tuple(defaults.items()),
        facts=tuple(facts.values()),
        options=options,
        name=name,
    )
