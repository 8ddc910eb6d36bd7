"""Mixtures of experts: the choice, the rows of each of a rank's experts, their products, and the
way back.

Between `Permute` and `Unpermute` a value is (rows, elements) for each extent, one row for each
token and expert that it chose, sorted by expert; behind the extents stand the number of rows of
each expert and the way that the rows came (`dispatch.Way`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from shardwright.execute.native.token_dispatch import Owners, Way, returned, sent
from shardwright.execute.native.torch_private import local
from shardwright.execute.numerics.base.top_k_choice import chosen_experts
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.operator_constants import Settings
from shardwright.model.ir.tensor_dims import Dim


class Route(nn.Module):  # type: ignore[misc]
    """The choice of experts: see `chosen_experts`.

    Args:
        seen: gets the logits of every forward pass; None: they are not kept.
    """

    def __init__(self, operator: Operator, *, settings: Settings) -> None:
        super().__init__()
        assert operator.experts is not None
        self.seen: list[torch.Tensor] | None = None
        self.shape, self.settings = operator.experts, settings
        self.own = nn.ParameterDict(
            {
                p.name.rpartition(".")[2]: torch.empty(p.size, device="meta")
                for p in operator.parameters
            }
        )

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(samples, positions, topk) twice."""
        if self.seen is not None:
            self.seen.append(logits)
        return chosen_experts(
            logits, dict(self.own.items()), shape=self.shape, settings=self.settings
        )


class NativePermute(nn.Module):  # type: ignore[misc]
    """Rows of tokens, copied to every expert that they chose, or times what it counts.

    Args:
        owners: ranks that have experts, or parts of them, of their own. copies: ranks of tp that
            have the same tokens and parts of experts.
    """

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        assert operator.experts is not None
        self.experts, self.weighed = operator.experts.experts, operator.weighed
        self.owners: Owners | None = None
        self.copies: DeviceMesh | None = None

    def forward(
        self, x: torch.Tensor, probabilities: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Way]:
        """Rows, their number by expert, and their way."""
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        rows = x.flatten(0, 1)[order // chosen.shape[-1]]
        if self.weighed:
            rows = rows * probabilities.flatten()[order].unsqueeze(-1)
        if self.copies is not None:
            # In backward each rank has what its part of the experts gives.
            rows = DTensor.from_local(rows, self.copies, [Replicate()], run_check=False).to_local(
                grad_placements=[Partial()]
            )
        if self.owners is None:
            return rows, counts, Way(order=order)
        return sent(rows, counts, order, to=self.owners)


class Products(nn.Module):  # type: ignore[misc]
    """y_e = x_e W_e (+ b_e) for the rows of every expert e, one tensor for every extent that the
    operator writes.
    """

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        count = len(operator.writes)
        tensors = [
            nn.Parameter(torch.empty([e.size for e in p.extents], device="meta"))
            for p in operator.parameters
        ]
        self.weights, self.biases = (
            nn.ParameterList(tensors[:count]),
            nn.ParameterList(tensors[count:]),
        )
        self.widths = [
            [e.dim for e in p.extents].index(Dim.FFN) for p in operator.parameters[:count]
        ]

    def cut(self, mesh: DeviceMesh) -> None:
        """Leave every rank its part of the experts (dim ``ep`` of the mesh) and of their inner
        width (any other dim).
        """
        for own, widths in ((self.weights, self.widths), (self.biases, ())):
            for i, whole in enumerate(own):
                placements = [
                    Shard(0 if name == "ep" else widths[i]) for name in mesh.mesh_dim_names or ()
                ]
                part = distribute_tensor(whole.detach(), mesh, placements, src_data_rank=None)
                own[i] = nn.Parameter(part, requires_grad=whole.requires_grad)

    def forward(
        self, x: torch.Tensor, counts: torch.Tensor, way: Way
    ) -> tuple[torch.Tensor | Way, ...]:
        """Products, and what says whose rows they are."""
        rows = x.split(counts.tolist())
        found = [
            torch.cat([part @ matrix for part, matrix in zip(rows, local(weight), strict=True)])
            for weight in self.weights
        ]
        for i, bias in enumerate(self.biases):
            found[i] = found[i] + local(bias).repeat_interleave(counts, dim=0)
        return (*found, counts, way)


class NativeUnpermute(nn.Module):  # type: ignore[misc]
    """y = sum over a token's experts of probability x row, or of rows that were weighed before;
    `copies`: see `NativePermute`.
    """

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.weighed = operator.weighed
        self.copies: DeviceMesh | None = None

    def forward(
        self,
        rows: torch.Tensor,
        counts: torch.Tensor,
        way: Way,
        probabilities: torch.Tensor,
        chosen: torch.Tensor,
    ) -> tuple[torch.Tensor]:
        """(samples, positions, elements)."""
        if self.copies is not None:
            rows = (
                DTensor.from_local(rows, self.copies, [Partial()], run_check=False)
                .redistribute(placements=[Replicate()])
                .to_local()
            )
        each = returned(rows, way).unflatten(0, chosen.shape)
        return ((each if self.weighed else probabilities.unsqueeze(-1) * each).sum(-2),)


def spread_experts(
    steps: Iterable[nn.Module], mesh: DeviceMesh | None, owners: Owners | None
) -> tuple[Products, ...]:
    """Leave every rank its own experts, or parts of them, and send it rows of other ranks' tokens:
    the products of a layer.

    Args:
        mesh: ``ep`` and ``etp``; None: each rank has all experts.
    """
    found = []
    for step in steps:
        if isinstance(step, NativePermute):
            step.owners = owners
        if isinstance(step, Products):
            found.append(step)
            if mesh is not None:
                step.cut(mesh)
    return tuple(found)


def cut_experts(steps: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Cut all experts of a layer by their inner width, over ranks that have the same tokens."""
    for step in steps:
        if isinstance(step, NativePermute | NativeUnpermute):
            step.copies = mesh
        if isinstance(step, Products):
            step.cut(mesh)
