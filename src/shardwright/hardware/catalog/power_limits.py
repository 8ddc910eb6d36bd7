"""Power limits of accelerators in watts: the most that a board draws for longer than an instant.

Source: the makers' data sheets.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.hardware.accelerator import Accelerator, Evidence, Origin
from shardwright.lazily_compiled_dataclass import dataclass

_SHEET: Final = Origin(
    evidence=Evidence.PUBLISHED, reference="NVIDIA data sheet (thermal design power), from memory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power limit of a device in watts, and its source."""

    watts: float
    origin: Origin


_WATTS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "t4": 70.0,
        "v100-sxm-16gb": 300.0,
        "v100-sxm-32gb": 300.0,
        "a10": 150.0,
        "a30": 165.0,
        "a100-sxm-40gb": 400.0,
        "a100-sxm-80gb": 400.0,
        "a100-pcie-40gb": 250.0,
        "a100-pcie-80gb": 300.0,
        "a800-sxm-80gb": 400.0,
        "l4": 72.0,
        "l40s": 350.0,
        "h100-sxm": 700.0,
        "h100-pcie": 350.0,
        "h100-nvl": 400.0,
        "h800-sxm": 700.0,
        "h200-sxm": 700.0,
        "b200-sxm": 1000.0,
    }
)


def power_limit(accelerator: Accelerator) -> Power | None:
    """Power limit in watts of a catalog accelerator, with its source; None if not listed."""
    watts = _WATTS.get(accelerator.name)
    return None if watts is None else Power(watts=watts, origin=_SHEET)
