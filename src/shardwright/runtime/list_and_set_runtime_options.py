"""Options of a framework's version: those that it offers, their defaults, and setting them.

A runtime is a framework's version and options, written as ``megatron-core-0.12 tp_overlap=dgrad
loss=te``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from shardwright.errors import RuntimeModelError, nearest
from shardwright.runtime.framework_description import Offer, Options, Runtime
from shardwright.runtime.option_vocabulary import BY_NAME, in_vocabulary_order

MAX_SHOWN: Final = 60


def default_options(runtime: Runtime) -> Options:
    """(option, default value) pairs by a version's fields; ValueError if none or several match.

    Raises:
        ValueError: the version's fields match no value of an option, or several (a mistake in a
            runtime file, not a user's).
    """
    defaults = []
    for name in offered_values(runtime):
        matching = [
            o.value
            for o in runtime.offers
            if o.option == name
            and all(getattr(runtime, field) == value for field, value in o.values)
        ]
        if len(matching) != 1:
            raise ValueError(
                f"{runtime.name}: {name} is {' and '.join(matching) or 'none of its values'}"
            )
        defaults.append((name, matching[0]))
    return tuple(defaults)


def offered_values(runtime: Runtime) -> dict[str, tuple[str, ...]]:
    """{option: values} that `runtime` can run, in the order of the vocabulary."""
    return dict(
        in_vocabulary_order(
            (name, tuple(offer.value for offer in runtime.offers if offer.option == name))
            for name in {offer.option for offer in runtime.offers}
        )
    )


def runtime_with_options(runtime: Runtime, written: Iterable[tuple[str, str]]) -> Runtime:
    """Runtime with options set, listed in its name; RuntimeModelError if unknown or contradictory.

    Options that were set before stay, unless `written` sets them too.

    Raises:
        RuntimeModelError: an unknown option; an option or a value that the framework does not
            offer; an option set twice; or two options that contradict each other.
    """
    offers_chosen: dict[str, Offer] = {}
    for name, value in written:
        if name in offers_chosen and offers_chosen[name].value != value:
            raise RuntimeModelError(
                f"option {name} is set twice",
                hint=f"{name}={offers_chosen[name].value} or {name}={value}",
            )
        offers_chosen[name] = _find_offer(runtime, name, value)
    present = {**dict(runtime.own), **dict(runtime.options)}
    changes = [
        offers_chosen[name]
        for name, _ in in_vocabulary_order((name, "") for name in offers_chosen)
        if present.get(name) != offers_chosen[name].value
    ]
    if not changes:
        return runtime
    values: dict[str, object] = {}
    for offer in changes:
        for changed, setting in offer.values:
            if values.setdefault(changed, setting) != setting:
                raise RuntimeModelError(
                    f"option {offer.option}={offer.value} contradicts another one of"
                    f" {', '.join(c.option for c in changes)}",
                    hint="leave one of them out",
                )
    facts = {fact.field: fact for fact in runtime.facts} | {
        fact.field: fact for offer in changes for fact in offer.facts
    }
    merged = {**dict(runtime.options), **{offer.option: offer.value for offer in changes}}
    options = in_vocabulary_order(pair for pair in merged.items() if pair not in runtime.own)
    base = runtime.base or runtime.name
    _require_together(runtime, {**dict(runtime.own), **merged})
    name = " ".join([base, *(f"{option}={value}" for option, value in options)])
    return replace(
        runtime,
        **values,  # type: ignore[arg-type]
        name=name,
        facts=tuple(facts.values()),
        options=options,
        base=base,
    )


def _require_together(runtime: Runtime, present: Mapping[str, str]) -> None:
    """Raise RuntimeModelError if an option in `present` needs another value of a second option."""
    for offer in runtime.offers:
        if present.get(offer.option) != offer.value:
            continue
        for name, allowed in offer.needs:
            if present.get(name, allowed[0]) not in allowed:
                raise RuntimeModelError(
                    f"{runtime.base or runtime.name} runs {offer.option}={offer.value} with"
                    f" {name}={' or '.join(allowed)} alone, not with {name}={present[name]}",
                    hint=f"{name}={allowed[0]}, or without {offer.option}={offer.value}",
                )


def _find_offer(runtime: Runtime, name: str, value: str) -> Offer:
    """Find the runtime's offer of an option at a value; RuntimeModelError where it has none."""
    offers = {offer.value: offer for offer in runtime.offers if offer.option == name}
    if name not in BY_NAME:
        raise RuntimeModelError(
            f"unknown option {name[:MAX_SHOWN]!r}",
            hint=nearest(name, offered_values(runtime) or BY_NAME),
        )
    if not offers:
        offered_names = ", ".join(offered_values(runtime)) or "none"
        raise RuntimeModelError(
            f"{runtime.name} has no option {name}", hint=f"it has {offered_names}"
        )
    if value not in offers:
        raise RuntimeModelError(
            f"{runtime.name} cannot have {name}={value[:MAX_SHOWN]}",
            hint=f"{name} is {' or '.join(offers)}",
        )
    return offers[value]
