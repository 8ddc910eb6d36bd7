"""Mixtures of experts: the choice, the rows of each of a rank's experts, their products, and the way back.

Between `Permute` and `Unpermute` a value is (rows, elements) for each extent, one row for each token and expert that it chose, sorted by
expert; behind the extents stand the number of rows of each expert and the way that the rows came (`dispatch.Way`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from shardwright.execute.native.dispatch import Way, returned, sent
from shardwright.execute.native.torch_private import local
from shardwright.execute.numerics.choice import chosen_experts
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.settings import Settings


class Route(nn.Module):  # type: ignore[misc]
    """The choice of experts: see `chosen_experts`."""

    def __init__(self, operator: Operator, *, settings: Settings) -> None:
        super().__init__()
        assert operator.experts is not None
        self.shape, self.settings = operator.experts, settings
        self.own = nn.ParameterDict({p.name.rpartition(".")[2]: torch.empty(p.size, device="meta") for p in operator.parameters})

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(samples, positions, topk) twice."""
        return chosen_experts(logits, dict(self.own.items()), shape=self.shape, settings=self.settings)


class NativePermute(nn.Module):  # type: ignore[misc]
    """Rows of tokens, copied to every expert that they chose, or times what it counts; `ranks`: of ep, that have experts of their own."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        assert operator.experts is not None
        self.experts, self.weighed = operator.experts.experts, operator.weighed
        self.ranks: dist.ProcessGroup | None = None

    def forward(self, x: torch.Tensor, probabilities: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Way]:
        """Rows, their number by expert, and their way."""
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        rows = x.flatten(0, 1)[order // chosen.shape[-1]]
        if self.weighed:
            rows = rows * probabilities.flatten()[order].unsqueeze(-1)
        if self.ranks is None:
            return rows, counts, Way(order=order)
        return sent(rows, counts, order, group=self.ranks)


class Products(nn.Module):  # type: ignore[misc]
    """y_e = x_e W_e (+ b_e) for the rows of every expert e, one tensor for every extent that the operator writes."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        count = len(operator.writes)
        tensors = [nn.Parameter(torch.empty([e.size for e in p.extents], device="meta")) for p in operator.parameters]
        self.weights, self.biases = nn.ParameterList(tensors[:count]), nn.ParameterList(tensors[count:])

    def forward(self, x: torch.Tensor, counts: torch.Tensor, way: Way) -> tuple[torch.Tensor | Way, ...]:
        """Products, and what says whose rows they are."""
        rows = x.split(counts.tolist())
        found = [torch.cat([part @ matrix for part, matrix in zip(rows, local(weight), strict=True)]) for weight in self.weights]
        for i, bias in enumerate(self.biases):
            found[i] = found[i] + local(bias).repeat_interleave(counts, dim=0)
        return (*found, counts, way)


class NativeUnpermute(nn.Module):  # type: ignore[misc]
    """y = sum over a token's experts of probability x row, or of rows that were weighed before."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.weighed = operator.weighed

    def forward(
        self, rows: torch.Tensor, counts: torch.Tensor, way: Way, probabilities: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor]:
        """(samples, positions, elements)."""
        each = returned(rows, way).unflatten(0, chosen.shape)
        return ((each if self.weighed else probabilities.unsqueeze(-1) * each).sum(-2),)


def spread_experts(steps: Iterable[nn.Module], ranks: DeviceMesh | None) -> tuple[Products, ...]:
    """The products of a layer; of every rank of ep, its own experts alone, as many each, in order.

    Args:
        ranks: of ep; None: each has all experts.
    """
    found = []
    for step in steps:
        if isinstance(step, NativePermute) and ranks is not None:
            step.ranks = ranks.get_group()
        if isinstance(step, Products):
            found.append(step)
            for own in (step.weights, step.biases) if ranks is not None else ():
                for i, whole in enumerate(own):
                    cut = distribute_tensor(whole.detach(), ranks, [Shard(0)], src_data_rank=None)
                    own[i] = nn.Parameter(cut, requires_grad=whole.requires_grad)
    return tuple(found)
