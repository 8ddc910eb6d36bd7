"""Options that a search tries without being asked, and sets of modules to recompute, from the
cheapest on.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from shardwright.errors import RuntimeModelError
from shardwright.program.block.recomputed_operators import recomputed_operators
from shardwright.program.problem import Problem, under
from shardwright.runtime.runtime import Options
from shardwright.runtime.runtime_options import (
    BY_NAME,
    OF_EXPERTS,
    in_vocabulary_order,
    offered_values,
)
from shardwright.strategy.grid.model_counts import has_experts

LADDER: Final[tuple[str, ...]] = (
    "recompute_norms",
    "recompute_moe_act",
    "recompute_mla",
    "recompute_shared",
    "recompute_mlp",
    "recompute_moe",
)
"""Options in the order in which they cost more time for what they free: norms and activations are
passes over memory; the up projections of latent attention make the most bytes of a product's FLOPs;
whole feed-forwards repeat most of the layer, those of few tokens first.
"""
NOTHING: Final[tuple[Options, ...]] = ((),)
"""One set: what the runtime does by itself."""


def module_ladder(problem: Problem) -> tuple[Options, ...]:
    """The runtime's own set of recomputed modules, then sets with one more option of LADDER each
    that changes anything for the model.

    Of a model without experts or latent attention under Megatron-Core: nothing, norms, norms and
    feed-forwards.
    """
    found: list[Options] = [()]
    offers = offered_values(problem.runtime)
    for option in LADDER:
        if "on" not in offers.get(option, ()):
            continue
        more = in_vocabulary_order((*found[-1], (option, "on")))
        try:
            new = _redone(under(problem, more))
        except RuntimeModelError:
            continue
        if new != _redone(under(problem, found[-1])):
            found.append(more)
    return tuple(found)


def searched_options(problem: Problem) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Options of the runtime whose values are all searched (`Option.searched`), each with the
    runtime's own value first.

    Not those that are set with its name, as in ``megatron-core dispatcher=flex``, nor what means
    nothing to a model without experts.
    """
    present, chosen = dict(problem.runtime.own), dict(problem.runtime.options)
    experts = has_experts(problem.model)
    found = []
    for name, offered in offered_values(problem.runtime).items():
        option = BY_NAME[name]
        tried = [value for value in option.searched if value in offered]
        if (
            name in chosen
            or present[name] not in tried
            or len(tried) < 2
            or (name in OF_EXPERTS and not experts)
        ):
            continue
        found.append((name, (present[name], *(value for value in tried if value != present[name]))))
    return tuple(found)


def turns_on(modules: Options, own: Mapping[str, str]) -> bool:
    """True if a set of modules recomputes more than the runtime's own values `own`."""
    return any(value == "on" and own.get(name) != "on" for name, value in modules)


def without_modules(
    sets: Iterable[Options], name: str, values: Collection[str], *, own: Mapping[str, str]
) -> tuple[Options, ...]:
    """The sets of modules without those that have an option of LADDER at one of these values."""
    return tuple(chosen for chosen in sets if dict(chosen).get(name, own.get(name)) not in values)


def pinned_modules(
    sets: Iterable[Options], pins: Mapping[str, Iterable[str]], *, own: Mapping[str, str]
) -> tuple[Options, ...]:
    """The sets of modules with the pinned values of options of LADDER, the fewest modules first.

    Of each combination of pinned values: the sets that have it; where none has, those that have all
    its modules that any set has, with the pinned options at its values.
    """
    names = list(dict(in_vocabulary_order((name, "") for name in pins)))
    known = tuple(sets)
    switched = {name for chosen in known for name, value in chosen if value == "on"}
    found: dict[Options, None] = {}
    for values in itertools.product(
        *(sorted(pins[name], key=lambda value: value == "on") for name in names)
    ):
        pinned = dict(zip(names, values, strict=True))
        full = [{**own, **dict(chosen)} for chosen in known]
        same = [
            chosen
            for chosen, has in zip(known, full, strict=True)
            if all(has.get(name) == value for name, value in pinned.items())
        ]
        needed = {name for name, value in pinned.items() if value == "on" and name in switched}
        more = [
            {**dict(chosen), **pinned}
            for chosen, has in zip(known, full, strict=True)
            if all(has[name] == "on" for name in needed)
        ]
        # What is the runtime's own is not set.
        opened = [
            in_vocabulary_order(pair for pair in chosen.items() if own.get(pair[0]) != pair[1])
            for chosen in more
        ]
        found |= dict.fromkeys(same or opened)
    return tuple(found)


def _redone(problem: Problem) -> tuple[frozenset[str], ...]:
    """Recomputed operators of each block."""
    return tuple(
        recomputed_operators(block.operators, problem.runtime).again
        for block in problem.model.blocks
    )
