"""Dims of tensors, and the extents and parameters that operators are made of."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from shardwright.lazy_dataclass import dataclass


class Dim(StrEnum):
    """The dims that a split may cut (DESIGN section 2). `WIDTH` is an operator's own width,
    `REPLICATE` cuts nothing.
    """

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
    """Class of a parameter, by which `Shards` rules and sync groups select it."""

    DENSE = "dense"
    EXPERTS = "experts"
    EMBED = "embed"
    HEAD = "head"
    LORA = "lora"
    BASE = "base"


TABLES = (ParameterClass.EMBED, ParameterClass.HEAD)
"""Classes of a row for each word of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A stretch of a dim: `size` elements that can be cut only between runs of `quantum` elements.

    Args:
        dim: the dim it lies in.
        size: elements, whole (unsplit).
        quantum: indivisible run in elements (head_dim for heads, 1 for a feed-forward width).

    A split into more parts than there are runs gives every part one run (KV heads fewer than tp are
    copied).
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
        """Indivisible runs in the whole extent."""
        return self.size // self.quantum


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A weight tensor.

    Args:
        name: unique within its block; a tied weight names its owner in `tied_to`
            (``block.parameter``) and is stored once.
        extents: its shape.
        klass: selected by shard rules.
        trainable: frozen parameters have no gradient and no optimizer state.
        counted: among a model's parameters; not a number that files keep beside them (a buffer).
    """

    name: str
    extents: tuple[Extent, ...]
    klass: ParameterClass = ParameterClass.DENSE
    tied_to: str = ""
    trainable: bool = True
    counted: bool = field(default=True, repr=False)

    @property
    def size(self) -> int:
        """Elements of the whole tensor."""
        product = 1
        for extent in self.extents:
            product *= extent.size
        return product
