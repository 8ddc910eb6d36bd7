"""Split trees: cuts of an operator over devices (DESIGN section 2, A_op)."""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.tensor_dims import Dim


class Exchange(StrEnum):
    """Exchange of keys and values between context parallel ranks: ring or all-gather."""

    RING = "ring"
    GATHER = "gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One cut of a dim over devices, with a subtree for each part; None stands for one device.

    Args:
        dim: the dim that is cut; `Dim.REPLICATE` copies.
        parts: number of equal parts, or one weight a part.
        step: device stride of equal parts, or one device offset a part.
        children: one child if the parts are equal (stored once), else one a part.
        zigzag: part i gets pieces i and 2n-1-i of 2n (balances causal attention).
    """

    dim: Dim
    parts: int | tuple[int, ...]
    step: int | tuple[int, ...]
    children: tuple[Split | None, ...] = (None,)
    zigzag: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.parts, int):
            if self.parts < 1 or not isinstance(self.step, int) or len(self.children) != 1:
                raise ValueError("equal parts need a count of at least 1, one stride and one child")
        elif (
            not self.parts
            or not isinstance(self.step, tuple)
            or not (len(self.parts) == len(self.step) == len(self.children))
            or min(self.parts) < 1
        ):
            raise ValueError(
                "weighted parts need one positive weight, one offset and one child each"
            )
        if min(self.step, default=0) < 0 if isinstance(self.step, tuple) else self.step < 0:
            raise ValueError("strides and offsets are counted upwards from the first device")

    @property
    def num_parts(self) -> int:
        """Number of parts into which this cut divides the dim."""
        return self.parts if isinstance(self.parts, int) else len(self.parts)


def devices_of(split: Split | None, first_device: int = 0) -> tuple[int, ...]:
    """Devices of all leaves in tree order, where the tree begins at device `first_device`."""
    if split is None:
        return (first_device,)
    if isinstance(split.parts, int):
        assert isinstance(split.step, int)
        return tuple(
            d
            for i in range(split.parts)
            for d in devices_of(split.children[0], first_device + i * split.step)
        )
    assert isinstance(split.step, tuple)
    return tuple(
        d
        for child, offset in zip(split.children, split.step, strict=True)
        for d in devices_of(child, first_device + offset)
    )


def num_leaves(split: Split | None) -> int:
    """Number of leaves below `split`, without listing them."""
    if split is None:
        return 1
    if isinstance(split.parts, int):
        return split.parts * num_leaves(split.children[0])
    return sum(num_leaves(child) for child in split.children)
