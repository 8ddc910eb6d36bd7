"""What is assumed of an accelerator."""

from __future__ import annotations

from shardwright.hardware.accelerator import Accelerator, Evidence


def assumptions(accelerator: Accelerator) -> tuple[str, ...]:
    """Names of everything about `accelerator` that no measurement or data sheet backs, for the
    answer to say ``assumed``."""
    gemm = (
        f"gemm {g.dtype.value}" for g in accelerator.gemm if g.origin.evidence is Evidence.ASSUMED
    )
    attention = (
        f"attention {a.generation}"
        for a in accelerator.attention
        if a.origin.evidence is Evidence.ASSUMED
    )
    return (*accelerator.assumed, *gemm, *attention)
