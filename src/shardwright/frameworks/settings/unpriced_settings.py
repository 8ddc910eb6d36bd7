"""Settings that change the answer and that no price here has: refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.settings.name_lists import by_name, entry_of
from shardwright.runtime.launch_arguments import Arguments

OFF: Final = frozenset({"", "false", "none", "null", "0", "no", "off", "0.0", "[]", "{}"})
"""Values at which a setting changes nothing."""
Refusal = tuple[str, frozenset[str]]
"""The effect of a setting that is not priced, and the values that have no effect."""


def refused(what: str, *harmless: str) -> Refusal:
    """A setting that is refused at all values but those that are off, and `harmless` ones, in lower
    case.
    """
    return what, OFF | frozenset(harmless)


def refusals(names: Mapping[str, str]) -> dict[str, Refusal]:
    """Settings that are refused at all values but those that are off.

    Args:
        names: what settings change that is not priced -> their names, apart by spaces.
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
    """Check that no setting changes the answer in a way that is not priced.

    Args:
        table: name of a setting, or the beginning of names that ends in ``*`` -> its refusal.

    Raises:
        DataError: one does; it is named.
    """
    for name, value in arguments.items():
        found = entry_of(name, table)
        if found is not None and value.strip().lower() not in found[1]:
            raise DataError(
                f"{name[:60]} {value[:40]}: {found[0]} is not priced here",
                hint="a launch without it, or --from another framework",
            )


def priced(arguments: Arguments, table: Mapping[str, Refusal]) -> dict[str, str]:
    """Settings of `table` that have a harmless value -> what they say:
    nothing that is not priced.
    """
    return {name: "as it is priced" for name in arguments if name in table}
