"""Mean and percentiles of one latency of a deployment, as a row of a table."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """Seconds of one latency over requests; None where no request has it.

    Args:
        name: in words, such as ``time to first token``.
    """

    name: str
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
