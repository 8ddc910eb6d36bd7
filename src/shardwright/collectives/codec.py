"""What travels on the wire instead of the tensor: casts and block quantisation.

A codec that changes numbers is used only when the job allows it by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from shardwright.collectives.span import FloatArray
from shardwright.dtype import Dtype
from shardwright.errors import UsageError, nearest

_Volume = TypeVar("_Volume", float, FloatArray)

# (exponent, mantissa) bits that hold every value of the format; fp8 covers e4m3 and e5m2, fp4 is e2m1.
_FIELDS: Final = {
    Dtype.FP32: (8, 23),
    Dtype.TF32: (8, 10),
    Dtype.BF16: (8, 7),
    Dtype.FP16: (5, 10),
    Dtype.FP8: (5, 3),
    Dtype.FP4: (2, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How elements of one dtype are written on the wire.

    Args:
        name: what a job lists to allow it. source: dtype of the tensor.
        bits: bits an element on the wire, without scales.
        block: elements that share a scale; 0 = no scales. scale_bits: of one scale.
        lossless: every value comes back as it was.
        reference: where the codec is described.
    """

    name: str
    source: Dtype
    bits: int
    lossless: bool
    block: int = 0
    scale_bits: int = 0
    reference: str = ""

    @property
    def ratio(self) -> float:
        """Bytes on the wire over bytes of the tensor: (bits + scale_bits / block) / source bits."""
        scales = self.scale_bits / self.block if self.block else 0.0
        return (self.bits + scales) / self.source.bits


def identity(source: Dtype) -> Codec:
    """The tensor as it is."""
    return Codec(name="identity", source=source, bits=source.bits, lossless=True)


def cast(source: Dtype, *, wire: Dtype) -> Codec:
    """Each element rounded to `wire`; lossless if `wire` has the exponent and mantissa bits of `source`. Scales are not counted."""
    if source is wire:
        return identity(source)
    (exponent, mantissa), (wire_exponent, wire_mantissa) = _FIELDS[source], _FIELDS[wire]
    return Codec(name=f"{wire.value}-cast", source=source, bits=wire.bits, lossless=wire_exponent >= exponent and wire_mantissa >= mantissa)


def block_quantised(source: Dtype, *, bits: int, block: int, scale_bits: int = 32, reference: str = "") -> Codec:
    """Blocks of `block` integers of `bits` bits with one scale each; loses precision."""
    if bits < 1 or block < 1 or scale_bits < 0:
        raise UsageError(
            f"a block codec of {bits} bits in blocks of {block} with {scale_bits} bits of scale cannot be",
            hint="bits and block are at least 1",
        )
    return Codec(
        name=f"int{bits}-block{block}", source=source, bits=bits, lossless=False, block=block, scale_bits=scale_bits, reference=reference
    )


def codecs_for(source: Dtype) -> tuple[Codec, ...]:
    """All codecs known for tensors of `source`, identity first; casts only to fewer bits."""
    casts = tuple(cast(source, wire=wire) for wire in (Dtype.BF16, Dtype.FP16, Dtype.FP8) if wire.bits < source.bits)
    zero_plus_plus = "Wang et al. 2023, ZeRO++ (arXiv:2306.10209), sections 3.1 and 3.3; block length and fp32 scales assumed"
    blocks = tuple(block_quantised(source, bits=bits, block=256, reference=zero_plus_plus) for bits in (8, 4) if bits < source.bits)
    return (identity(source), *casts, *blocks)


def allowed_codecs(source: Dtype, *, allowed: Iterable[str] = ()) -> tuple[Codec, ...]:
    """The codecs that may be used on tensors of `source`: all lossless ones, and lossy ones listed in `allowed`.

    Raises:
        UsageError: a name in `allowed` is no codec of any dtype.
    """
    names = frozenset(allowed)
    known = {codec.name for dtype in Dtype for codec in codecs_for(dtype)}
    for name in sorted(names - known):
        raise UsageError(f"unknown wire codec {name!r}", hint=nearest(name, known))
    return tuple(codec for codec in codecs_for(source) if codec.lossless or codec.name in names)


def wire_volume(volume: _Volume, *, codec: Codec) -> _Volume:
    """Bytes on the wire of `volume` bytes of the tensor: volume * ratio. Left out: time to encode and decode, padding of the last block."""
    result: _Volume = volume * codec.ratio
    return result
