"""TPU slices by Google's own names: ``v5p-256``, ``tpu-v6e-16``, ``v5litepod-256``.

The number counts TensorCores on v2 to v5p, of which a chip has two, and chips on v5e and v6e.
Source: docs.cloud.google.com/tpu/docs, the pages of each version ("AcceleratorType"), from memory.
A name that is not in the table is refused.
"""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import ClusterError
from shardwright.lazily_compiled_dataclass import dataclass

_CORES_PER_CHIP: Final = {"tpu-v3": 2, "tpu-v4": 2, "tpu-v5p": 2, "tpu-v5e": 1, "tpu-v6e": 1}
"""Unit of the number in a slice's name: TensorCores, or chips where there is one per chip."""
_ACCELERATORS: Final = {name.removeprefix("tpu-"): name for name in _CORES_PER_CHIP} | {
    "v5litepod": "tpu-v5e"
}
_NAME: Final = re.compile(r"(?:tpu[-_]?)?(v[0-9][a-z]*)[-_]([0-9]{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSlice:
    """A TPU slice: `num_devices` chips of an accelerator, joined by their own network.

    `note` states the unit of the number in its name.
    """

    accelerator: str
    num_devices: int
    note: str


def find_tpu_slice(name: str) -> TpuSlice | None:
    """TPU slice of a name such as ``v4-128`` (128 cores, 64 chips); None if not of this form.

    Raises:
        ClusterError: the number is not one of whole chips.
    """
    found = _NAME.fullmatch(name.strip().lower())
    if found is None or found[1] not in _ACCELERATORS:
        return None
    accelerator, number = _ACCELERATORS[found[1]], int(found[2])
    cores = _CORES_PER_CHIP[accelerator]
    if not number or number % cores:
        raise ClusterError(
            f"there is no TPU slice {name[:40]}",
            hint=f"its number counts TensorCores, {cores} a chip",
        )
    counted = f"TensorCores, {cores} a chip" if cores > 1 else "chips"
    return TpuSlice(
        accelerator=accelerator,
        num_devices=number // cores,
        note=f"{found[1]}-{number} counts {counted}",
    )
