"""Number formats of compute and storage, used by every layer."""

from __future__ import annotations

from enum import StrEnum


class Dtype(StrEnum):
    """Number formats of compute and storage."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def bits(self) -> int:
        """Bits an element: what the name says behind its two letters."""
        return int(self[2:])
