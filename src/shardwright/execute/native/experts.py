"""Mixtures of experts that every rank has whole: the choice, the rows of each expert, their products, and the way back.

Between `Permute` and `Unpermute` a value is (rows, elements) for each extent, one row for each token and expert that it chose, sorted by
expert, then token; behind the extents stand the number of rows of each expert and, of each row, its (token, choice) as one number.
"""

from __future__ import annotations

import torch
from torch import nn

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
    """Rows of tokens, copied to every expert that they chose, or times what it counts."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        assert operator.experts is not None
        self.experts, self.weighed = operator.experts.experts, operator.weighed

    def forward(self, x: torch.Tensor, probabilities: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Rows, their number by expert, and their (token, choice)."""
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        rows = x.flatten(0, 1)[order // chosen.shape[-1]]
        return rows * probabilities.flatten()[order].unsqueeze(-1) if self.weighed else rows, counts, order


class Products(nn.Module):  # type: ignore[misc]
    """y_e = x_e W_e (+ b_e) for the rows of every expert e, one tensor for every extent that the operator writes."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        count = len(operator.writes)
        tensors = [nn.Parameter(torch.empty([e.size for e in p.extents], device="meta")) for p in operator.parameters]
        self.weights, self.biases = nn.ParameterList(tensors[:count]), nn.ParameterList(tensors[count:])

    def forward(self, x: torch.Tensor, counts: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Products, and what says whose rows they are."""
        rows = x.split(counts.tolist())
        found = [torch.cat([part @ matrix for part, matrix in zip(rows, weight, strict=True)]) for weight in self.weights]
        for i, bias in enumerate(self.biases):
            found[i] = found[i] + bias.repeat_interleave(counts, dim=0)
        return (*found, counts, order)


class NativeUnpermute(nn.Module):  # type: ignore[misc]
    """y = sum over a token's experts of probability x row, or of rows that were weighed before."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.weighed = operator.weighed

    def forward(
        self, rows: torch.Tensor, counts: torch.Tensor, order: torch.Tensor, probabilities: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor]:
        """(samples, positions, elements)."""
        each = rows[torch.argsort(order)].unflatten(0, chosen.shape)
        return ((each if self.weighed else probabilities.unsqueeze(-1) * each).sum(-2),)
