"""Number formats of compute and storage (fp32, bf16, fp8 ..)."""

from __future__ import annotations

from enum import StrEnum


class Dtype(StrEnum):
    """A number format of compute and storage; `bits` is the size of one element."""

    bits: int

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"

    def __new__(cls, name: str) -> Dtype:
        """Make a member with its bits as a plain attribute, for speed in searches."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.bits = int(name[2:])
        return member
