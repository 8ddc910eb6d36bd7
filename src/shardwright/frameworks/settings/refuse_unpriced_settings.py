"""Refusal of settings whose effect on the answer is not priced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    by_name,
    entry_of,
)
from shardwright.runtime.parse_launch_arguments import Arguments

OFF: Final = frozenset({"", "false", "none", "null", "0", "no", "off", "0.0", "[]", "{}"})
"""Values at which a setting is off."""
Refusal = tuple[str, frozenset[str]]
"""The effect of a setting that is not priced, and the values that have no effect."""


def refused(what: str, *harmless: str) -> Refusal:
    """(effect that is not priced, values that lack it): off values and lower-case `harmless`."""
    return what, OFF | frozenset(harmless)


def refusals(names: Mapping[str, str]) -> dict[str, Refusal]:
    """Setting -> refusal at all values but off values, from effect -> names of settings.

    Args:
        names: effect that is not priced -> names of the settings, separated by spaces.
    """
    return {name: refused(what) for name, what in by_name(names).items()}


OPTIMIZER: Final = refused(
    "an optimizer that keeps other states than Adam's",
    *(
        "adam",
        "adamw",
        "fusedadam",
        "fused_adam",
        "distributed_fused_adam",
        "megatron_fused_adam",
        "mcore_distributed_optim",
    ),
    *("cpuadam", "cpu_adam", "deepspeedcpuadam", "muadam", "muadamw", "adam_pax"),
)
"""The optimizer of a launch, by the names that frameworks have for Adam: one copy of the parameters
and two states are priced."""
OF_OPTIMIZER: Final = "states of the optimizer"
"""The effect of settings that name the optimizer."""


def refuse(arguments: Arguments, table: Mapping[str, Refusal]) -> None:
    """Raise DataError for the first setting of the table with a value neither off nor harmless.

    Args:
        table: name of a setting, or prefix that ends in ``*``, -> refusal.

    Raises:
        DataError: a setting has such an effect; the message names it.
    """
    for name, value in arguments.items():
        refusal = entry_of(name, table)
        if refusal is not None and value.strip().lower() not in refusal[1]:
            raise DataError(
                f"{name[:60]} {value[:40]}: {refusal[0]} is not priced here",
                hint="a launch without it, or --from another framework",
            )


def priced_notes(arguments: Arguments, table: Mapping[str, Refusal]) -> dict[str, str]:
    """Setting -> note "as it is priced", for accepted settings of the table of refusals."""
    return {name: "as it is priced" for name in arguments if name in table}
