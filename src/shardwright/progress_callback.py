"""Type of a progress callback."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Callback with the name of the current work, the number of finished parts, and the number of all
parts (0 = unknown).
"""
