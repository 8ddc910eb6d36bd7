"""Tensor dims, and the extents and parameters of operators."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from shardwright.lazily_compiled_dataclass import dataclass


class Dim(StrEnum):
    """The dims that a split may cut; `WIDTH` is an operator's own width, `REPLICATE` copies."""

    BATCH = "b"
    SEQUENCE = "s"
    CONTEXT = "c"
    WIDTH = "t"
    HEADS = "h"
    FFN = "f"
    HIDDEN = "d"
    VOCAB = "v"
    EXPERTS = "e"
    REPLICATE = "x"


class ParameterClass(StrEnum):
    """Class of a parameter, by which sharding rules and synchronisation groups select it."""

    DENSE = "dense"
    EXPERTS = "experts"
    EMBED = "embed"
    HEAD = "head"
    LORA = "lora"
    BASE = "base"


TABLES = (ParameterClass.EMBED, ParameterClass.HEAD)
"""Parameter classes with a row for each word of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """`size` elements of a tensor dim, divisible only between runs of `quantum` elements.

    Args:
        dim: the dim it lies in.
        size: elements, whole (unsplit).
        quantum: indivisible run in elements (head_dim for heads, 1 for a feed-forward width).

    A split into more parts than there are runs gives every part one run (fewer KV heads than tp
    are copied).
    """

    dim: Dim
    size: int
    quantum: int = 1

    def __post_init__(self) -> None:
        if self.size <= 0 or self.quantum <= 0 or self.size % self.quantum:
            raise ValueError(
                f"extent {self.dim}: size {self.size} is not a positive multiple of {self.quantum}"
            )

    @property
    def runs(self) -> int:
        """Number of pieces between which a split may cut the extent: size / quantum."""
        return self.size // self.quantum


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A weight tensor: its shape, class, and whether it is trained.

    Args:
        name: unique within its block; a tied weight names its owner in `tied_to`
            (``block.parameter``) and is stored once.
        extents: its shape.
        klass: class by which sharding rules select it.
        trainable: frozen parameters have no gradient and no optimizer state.
        counted: counted as a parameter; False for a stored buffer.
    """

    name: str
    extents: tuple[Extent, ...]
    klass: ParameterClass = ParameterClass.DENSE
    tied_to: str = ""
    trainable: bool = True
    counted: bool = field(default=True, repr=False)

    @property
    def size(self) -> int:
        """Number of elements of the whole tensor."""
        product = 1
        for extent in self.extents:
            product *= extent.size
        return product
