"""Runtime options of a plan as flags of a framework's launch script."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import PlanToExport
from shardwright.runtime.option_vocabulary import OF_EXPERTS
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts


def option_values(export: PlanToExport, *frameworks: str) -> dict[str, str]:
    """Option -> value of a plan's runtime options; empty if priced for none of `frameworks`.

    Options of experts are left out for a model without experts.
    """
    runtime = export.problem.runtime
    if runtime.framework not in frameworks:
        return {}
    values = {**dict(runtime.own), **dict(runtime.options), **dict(export.grid.options)}
    return (
        values
        if has_experts(export.problem.model)
        else {name: value for name, value in values.items() if name not in OF_EXPERTS}
    )


def option_flags_of_plan(
    export: PlanToExport, *frameworks: str, apart: Collection[str] = ()
) -> tuple[str, ...]:
    """Launch flags of a plan's option values; empty if priced for none of `frameworks`.

    A flag is as the framework's launch script writes it. Values without a flag are left out.

    Args:
        apart: names of options that are left out.
    """
    values = option_values(export, *frameworks)
    offers = (offer for offer in export.problem.runtime.offers if offer.option not in apart)
    return tuple(
        offer.flag for offer in offers if offer.flag and values.get(offer.option) == offer.value
    )


def flag_pairs(flag: str) -> tuple[tuple[str, str], ...]:
    """Parse a flag ``--tp 2 --bf16``, ``a.b: true`` or ``a=true`` to (name, value) pairs.

    The forms are ``--tp 2 --bf16``, ``a.b: true, c: cpu`` and ``a=true b=x,y``. The value of a
    switch is empty.
    """
    pairs: list[list[str]] = []
    for word in (word.removesuffix(",") for word in shlex.split(flag)):
        name, equals, value = word.partition("=")
        if word.startswith("--") or equals:
            pairs.append([name.removeprefix("--"), value])
        elif word.endswith(":"):
            pairs.append([word.removesuffix(":"), ""])
        elif pairs:
            pairs[-1][1] = f"{pairs[-1][1]} {word}".strip()
    return tuple((name, value) for name, value in pairs)
