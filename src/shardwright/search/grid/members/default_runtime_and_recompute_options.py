"""Runtime options and recomputed module sets that a search tries by default."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from shardwright.errors import RuntimeModelError
from shardwright.model.ir.model_graph import Model
from shardwright.program.block.operators_rerun_by_runtime_recompute_modules import (
    recomputed_operators,
)
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.framework_description import Options
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.option_vocabulary import BY_NAME, OF_EXPERTS, in_vocabulary_order
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts

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
"""The runtime's own set of recomputed modules alone."""


def module_ladder(problem: Problem) -> tuple[Options, ...]:
    """Cumulative recompute option sets: (), then one more effective option of LADDER "on" in each.

    Only options that change something for the model are added. For a model without experts or
    latent attention under Megatron-Core: nothing, norms, norms and feed-forwards.
    """
    sets: list[Options] = [()]
    offered = offered_values(problem.runtime)
    for option in LADDER:
        if "on" not in offered.get(option, ()):
            continue
        extended_set = in_vocabulary_order((*sets[-1], (option, "on")))
        try:
            recomputed = _recomputed_by_block(under(problem, extended_set))
        except RuntimeModelError:
            continue
        if recomputed != _recomputed_by_block(under(problem, sets[-1])):
            sets.append(extended_set)
    return tuple(sets)


def searched_options(problem: Problem) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Runtime options that a search varies if the user set none of them; the own value is first.

    Options that the user set after the runtime's name, as in ``megatron-core dispatcher=flex``, and
    expert options of a model without experts are left out.
    """
    runtime_values, chosen = dict(problem.runtime.own), dict(problem.runtime.options)
    experts = has_experts(problem.model)
    options = []
    for name, offered in offered_values(problem.runtime).items():
        option = BY_NAME[name]
        tried = [value for value in option.searched if value in offered]
        if (
            name in chosen
            or runtime_values[name] not in tried
            or len(tried) < 2
            or (name in OF_EXPERTS and not experts)
        ):
            continue
        options.append(
            (
                name,
                (
                    runtime_values[name],
                    *(value for value in tried if value != runtime_values[name]),
                ),
            )
        )
    return tuple(options)


def turns_on(modules: Options, runtime_values: Mapping[str, str]) -> bool:
    """True if a module set recomputes a module that the runtime by itself does not."""
    return any(value == "on" and runtime_values.get(name) != "on" for name, value in modules)


def without_modules(
    sets: Iterable[Options],
    name: str,
    values: Collection[str],
    *,
    runtime_values: Mapping[str, str],
) -> tuple[Options, ...]:
    """The module sets in which option `name` (else the runtime's value) is none of `values`."""
    return tuple(
        module_set
        for module_set in sets
        if dict(module_set).get(name, runtime_values.get(name)) not in values
    )


def pinned_modules(
    sets: Iterable[Options], pins: Mapping[str, Iterable[str]], *, runtime_values: Mapping[str, str]
) -> tuple[Options, ...]:
    """The module sets with the pinned values, built where none has them; fewest modules first.

    For each combination of pinned values: the sets that have it. If none has it: the sets that have
    all its modules that any set has, with the pinned options at its values.
    """
    names = list(dict(in_vocabulary_order((name, "") for name in pins)))
    module_sets = tuple(sets)
    options_on = {name for module_set in module_sets for name, value in module_set if value == "on"}
    result: dict[Options, None] = {}
    for values in itertools.product(
        *(sorted(pins[name], key=lambda value: value == "on") for name in names)
    ):
        pinned = dict(zip(names, values, strict=True))
        with_defaults = [{**runtime_values, **dict(module_set)} for module_set in module_sets]
        matching = [
            module_set
            for module_set, all_values in zip(module_sets, with_defaults, strict=True)
            if all(all_values.get(name) == value for name, value in pinned.items())
        ]
        needed = {name for name, value in pinned.items() if value == "on" and name in options_on}
        extended_sets = [
            {**dict(module_set), **pinned}
            for module_set, all_values in zip(module_sets, with_defaults, strict=True)
            if all(all_values[name] == "on" for name in needed)
        ]
        # Values that are the runtime's own are not set.
        without_defaults = [
            in_vocabulary_order(
                pair for pair in module_set.items() if runtime_values.get(pair[0]) != pair[1]
            )
            for module_set in extended_sets
        ]
        result |= dict.fromkeys(matching or without_defaults)
    return tuple(result)


def _recomputed_by_block(problem: Problem) -> tuple[frozenset[str], ...]:
    """Names of the operators of each block that the problem's runtime options recompute."""
    return tuple(
        recomputed_operators(block.operators, problem.runtime).again
        for block in problem.model.blocks
    )


def has_one_layer_kind(model: Model) -> bool:
    """True if all layers are of one kind; only then is a recomputed layer count searched."""
    return sum(b.is_layer for b in model.blocks) == 1
