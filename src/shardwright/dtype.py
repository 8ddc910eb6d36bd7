"""Number formats of compute and storage, used by every layer."""

from __future__ import annotations

from enum import StrEnum


class Dtype(StrEnum):
    """Number formats of compute and storage. `bits` are an element's: what the name says behind its
    two letters.
    """

    bits: int

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"

    def __new__(cls, name: str) -> Dtype:
        """A member with its bits as a plain attribute: they are asked for thousands of times in a
        search.
        """
        member = str.__new__(cls, name)
        member._value_ = name
        member.bits = int(name[2:])
        return member
