"""The norm of one extent: its blocks, groups, gain and bias."""

from __future__ import annotations

import torch

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentNorm:
    """Norm of one extent of an operator's input: its blocks, groups and parameters.

    Args:
        index: number of the extent.
        block: number of local elements that are normed together.
        size: number of elements over all devices that share a mean square.
        split: other devices have parts of the block.
        gain, bias: names of parameters, empty = none.
        centred: the mean is subtracted.
        first, groups: the block's first element in the full extent, which has `groups` equal parts
            with a mean square each.
    """

    index: int
    block: int
    size: int
    split: bool
    gain: str
    bias: str
    centred: bool
    first: int = 0
    groups: int = 1

    def group_sums(self, x: torch.Tensor) -> torch.Tensor:
        """Sum a block's elements by norm group: (.., groups), 0 for groups on other devices."""
        if self.groups == 1:
            return x.sum(-1, keepdim=True)
        return x.new_zeros(*x.shape[:-1], self.groups).index_add_(
            -1, self._norm_group_numbers(x), x
        )

    def spread(self, sums: torch.Tensor) -> torch.Tensor:
        """Expand values by norm group, (.., groups), over a block; one group's stay (.., 1)."""
        return sums if self.groups == 1 else sums.index_select(-1, self._norm_group_numbers(sums))

    def _norm_group_numbers(self, like: torch.Tensor) -> torch.Tensor:
        """(block,) norm group of each local input element; a group has its own mean square."""
        return torch.arange(self.first, self.first + self.block, device=like.device) // self.size
