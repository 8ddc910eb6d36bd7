"""What waits in host memory, by the words of a row's column `offload`."""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import StrategyError
from shardwright.validation.tables.measured_rows import Measurement

_NOTHING: Final = ("", "none", "no", "off", "0", "false")
_STATES: Final = frozenset({"opt", "optim", "optimizer", "states", "adam"})
_ALL: Final = frozenset({"full", "all"})
_PARAMETERS: Final = frozenset({"param", "params", "parameter", "parameters", "weights"})
_FILLING: Final = frozenset({"cpu", "host", "offload", "and", "zero"})


def offloaded(row: Measurement) -> tuple[int, tuple[str, ...]]:
    """(percent of the optimizer's states, options of the runtime) for words such as ``opt``,
    ``opt+param``, ``full-cpu`` or ``cpu``: the states alone where nothing else is said, parameters
    too where all or they are.

    Raises:
        StrategyError: other words.
    """
    words = row.offload.strip().lower()
    if words in _NOTHING:
        return 0, ()
    found = {word for word in re.split(r"[^a-z]+", words) if word}
    if not found or found - _STATES - _ALL - _PARAMETERS - _FILLING:
        raise StrategyError(f"offload {row.offload[:60]}", hint="opt, opt+param, full or none")
    states = found & (_STATES | _ALL) or not found & _PARAMETERS
    return 100 if states else 0, ("param_offload=on",) if found & (_ALL | _PARAMETERS) else ()
