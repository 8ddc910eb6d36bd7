"""What was asked of a search, in the user's words: enough to ask it again."""

from __future__ import annotations

from dataclasses import dataclass

Choices = tuple[tuple[str, tuple[str, ...]], ...]
"""(axis, values) pairs of pins or exclusions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of `plan`.

    Args:
        model: catalog name or path of a config.json. cluster: expression or path.
        seq_len: tokens of a sequence. global_batch: samples a step. runtime, precision, space: by name.
        pins, excludes: axes held to, or kept from, some values. max_devices: use no more than that; None = all.
        memory_reserve_bytes, memory_reserve_fraction: of every device's memory, left free.
        top: next best strategies wanted.
    """

    model: str
    cluster: str
    seq_len: int
    global_batch: int
    runtime: str
    precision: str = "bf16"
    space: str = "standard"
    pins: Choices = ()
    excludes: Choices = ()
    max_devices: int | None = None
    memory_reserve_bytes: int = 0
    memory_reserve_fraction: float = 0.0
    top: int = 5
