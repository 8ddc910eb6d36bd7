"""Keys of a block's seconds and bytes: parts, phases, and recompute options."""

from __future__ import annotations

PARTS = ("gemm", "attention", "element", "launch", "tp", "cp", "ep")
"""Parts of the seconds of a phase: kernels by family, launches, and exposed communication by
axis."""
GEMM, ATTENTION, ELEMENT, LAUNCH, TP, CP, EP = range(len(PARTS))
PHASES = ("F", "I", "W", "R_selective", "R_full")
PART_OF_AXIS = {"tp": TP, "etp": EP, "ep": EP, "coset": EP, "ring": CP, "ulysses": CP}
ACROSS = ("ep", "coset")
"""Axes along which tokens travel to experts."""
MODES = ("none", "selective", "full", "host")
