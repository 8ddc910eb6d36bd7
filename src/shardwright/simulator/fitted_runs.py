"""Runs that the shipped constants were fitted to; a prediction that has nothing in common with any
of them is doubtful.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Runtime

FRAMEWORK: Final = "framework without runs"
OPTIONS: Final = "options without runs"
PAIR: Final = "device new to the framework"
FILE: Final = Path(__file__).with_name("runs.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Measured runs, by framework and device.

    Args:
        pairs: (base, accelerator) of each run.
        options: (option, value) that some run had, set or the framework's own.
    """

    pairs: frozenset[tuple[str, str]]
    options: frozenset[tuple[str, str]]

    def doubts(self, runtime: Runtime, accelerator: str) -> dict[str, float]:
        """Share of each reason to doubt a prediction, 0 or 1.

        Reasons: no run under the framework's version; none with one of the options that are set;
        runs under the framework, but none on this device.
        """
        devices = {device for base, device in self.pairs if base == (runtime.base or runtime.name)}
        return {
            FRAMEWORK: float(not devices),
            OPTIONS: float(any(option not in self.options for option in runtime.options)),
            PAIR: float(bool(devices) and accelerator not in devices),
        }


@cache
def shipped_runs() -> Runs:
    """The runs of `runs.json`, which `tools/fit_constants.py` writes with the constants, and
    `tools/shipped_runs.py` anew.
    """
    fields = json.loads(FILE.read_text(encoding="utf-8"))
    return Runs(
        pairs=frozenset(map(tuple, fields["pairs"])),
        options=frozenset(map(tuple, fields["options"])),
    )
