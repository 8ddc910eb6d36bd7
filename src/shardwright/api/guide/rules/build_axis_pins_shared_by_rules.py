"""Pins that several rules share: degrees, powers of two, and the degrees of a plan."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.search.grid.fate_of_grid import axis_values
from shardwright.search.search_request import Choices
from shardwright.strategy.grid.parallelism_grid import Grid

BRIDGE = "NVIDIA Megatron Bridge, performance guide (commit 067f987, August 2026)"
BRIDGE_STRATEGIES = "NVIDIA Megatron Bridge, docs/parallelisms.md (commit 067f987, August 2026)"
PLAYBOOK = "Hugging Face, The Ultra-Scale Playbook (2025)"
SCALING_BOOK = "Austin et al., How to Scale Your Model, chapter on training (commit 0819a7d)"
ML_ENGINEERING = "Bekman, Machine Learning Engineering (commit 744d01e, August 2026)"

_KEPT_WITH_MORE_DEVICES = ("tp", "cp", "pp", "vpp", "ep", "mbs", "recompute")


def pin(axis: str, *values: int | str) -> tuple[str, tuple[str, ...]]:
    """One pin: an axis and its values."""
    return axis, tuple(map(str, values))


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """Powers of two from `low` to `high`, both included."""
    powers = (1 << exponent for exponent in range(high.bit_length()))
    return tuple(power for power in powers if power >= low)


def data_parallel_pins(*, zero: Iterable[int]) -> Choices:
    """Pins of data parallelism alone, with the ZeRO stages in `zero`."""
    return (pin("tp", 1), pin("cp", 1), pin("pp", 1), pin("zero", *zero))


def degree_pins(grid: Grid) -> Choices:
    """Pins of a plan's TP, CP, PP, virtual stages, EP, microbatch and recompute, without DP.

    Data parallelism takes the devices that are left.
    """
    values = axis_values(grid)
    return tuple(pin(axis, values[axis]) for axis in _KEPT_WITH_MORE_DEVICES)
