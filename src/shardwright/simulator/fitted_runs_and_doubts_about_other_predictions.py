"""Measured runs to which the shipped constants were fitted, and doubts about other predictions."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Runtime

FRAMEWORK: Final = "framework without runs"
OPTIONS: Final = "options without runs"
PAIR: Final = "device new to the framework"
FILE: Final = Path(__file__).with_name("runs.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRuns:
    """Framework, device and option of each measured run.

    Args:
        pairs: (framework release, accelerator) of each run.
        options: (option, value) that some run had, set or by default.
    """

    pairs: frozenset[tuple[str, str]]
    options: frozenset[tuple[str, str]]

    def doubts(self, runtime: Runtime, accelerator: str) -> dict[str, float]:
        """Shares (0 or 1) of doubts: framework, a set option, or framework on device unmeasured."""
        devices = {device for base, device in self.pairs if base == (runtime.base or runtime.name)}
        return {
            FRAMEWORK: float(not devices),
            OPTIONS: float(any(option not in self.options for option in runtime.options)),
            PAIR: float(bool(devices) and accelerator not in devices),
        }


@cache
def shipped_runs() -> FittedRuns:
    """The measured runs of `runs.json`, cached.

    `tools/fit_constants.py` writes the file with the constants, and `tools/shipped_runs.py` writes
    it again.
    """
    fields = json.loads(FILE.read_text(encoding="utf-8"))
    return FittedRuns(
        pairs=frozenset(map(tuple, fields["pairs"])),
        options=frozenset(map(tuple, fields["options"])),
    )
