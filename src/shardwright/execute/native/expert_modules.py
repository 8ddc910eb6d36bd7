"""Mixture-of-experts modules: routing, dispatch of rows, expert projections and the way back.

Between `NativePermute` and `NativeUnpermute` a value is (rows, elements) for each extent, with one
row for each pair of a token and a chosen expert, sorted by expert. After the extents follow the
number of rows of each expert and the rows' route (`token_dispatch.TokenRoute`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from shardwright.execute.native.private_torch_api import local_shard
from shardwright.execute.native.token_dispatch import (
    ExpertOwners,
    TokenRoute,
    return_rows,
    send_rows,
)
from shardwright.execute.numerics.base.top_k_experts import chosen_experts
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Dim


class NativeRouter(nn.Module):  # type: ignore[misc]
    """Module that chooses the experts of each token from its logits.

    See `chosen_experts`.

    Args:
        seen: receives the logits of every forward pass; None: logits are not kept.
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
        """Probabilities and numbers of the chosen experts, (samples, positions, topk) each."""
        if self.seen is not None:
            self.seen.append(logits)
        return chosen_experts(
            logits, dict(self.own.items()), shape=self.shape, settings=self.settings
        )


class NativePermute(nn.Module):  # type: ignore[misc]
    """Copy each token's row to every expert that it chose, and send rows to the experts' ranks.

    Rows are multiplied by the expert's probability where the operator is weighted.

    Args:
        owners: ranks that jointly hold all experts; None: this rank has all.
        copies: ranks of tp that have the same tokens and parts of experts.
    """

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        assert operator.experts is not None
        self.experts, self.weighed = operator.experts.experts, operator.weighed
        self.owners: ExpertOwners | None = None
        self.copies: DeviceMesh | None = None

    def forward(
        self, x: torch.Tensor, probabilities: torch.Tensor, expert_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, TokenRoute]:
        """Rows for the experts of this rank, number of rows by expert, and the rows' route."""
        order = torch.argsort(expert_ids.flatten(), stable=True)
        counts = torch.bincount(expert_ids.flatten(), minlength=self.experts)
        rows = x.flatten(0, 1)[order // expert_ids.shape[-1]]
        if self.weighed:
            rows = rows * probabilities.flatten()[order].unsqueeze(-1)
        if self.copies is not None:
            # In backward each rank has the partial gradient of its part of the experts.
            rows = DTensor.from_local(rows, self.copies, [Replicate()], run_check=False).to_local(
                grad_placements=[Partial()]
            )
        if self.owners is None:
            return rows, counts, TokenRoute(order=order)
        return send_rows(rows, counts, order, to=self.owners)


class GroupedProjections(nn.Module):  # type: ignore[misc]
    """Grouped linear layers y_e = x_e W_e (+ b_e) of every expert e, one output for each extent."""

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

    def shard(self, mesh: DeviceMesh) -> None:
        """Shard the weights: experts over the mesh dim ``ep``, inner width over the other dims."""
        for parameters, widths in ((self.weights, self.widths), (self.biases, ())):
            for i, full in enumerate(parameters):
                placements = [
                    Shard(0 if name == "ep" else widths[i]) for name in mesh.mesh_dim_names or ()
                ]
                part = distribute_tensor(full.detach(), mesh, placements, src_data_rank=None)
                parameters[i] = nn.Parameter(part, requires_grad=full.requires_grad)

    def forward(
        self, x: torch.Tensor, counts: torch.Tensor, route: TokenRoute
    ) -> tuple[torch.Tensor | TokenRoute, ...]:
        """Multiply each expert's rows by its weights, add biases; counts and route pass through."""
        rows = x.split(counts.tolist())
        outputs = [
            torch.cat(
                [part @ matrix for part, matrix in zip(rows, local_shard(weight), strict=True)]
            )
            for weight in self.weights
        ]
        for i, bias in enumerate(self.biases):
            outputs[i] = outputs[i] + local_shard(bias).repeat_interleave(counts, dim=0)
        return (*outputs, counts, route)


class NativeUnpermute(nn.Module):  # type: ignore[misc]
    """Sum of each token's expert rows, weighted by probability, back in token order.

    Rows may have been weighted before (`weighed`). `copies`: see `NativePermute`.
    """

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.weighed = operator.weighed
        self.copies: DeviceMesh | None = None

    def forward(
        self,
        rows: torch.Tensor,
        counts: torch.Tensor,
        route: TokenRoute,
        probabilities: torch.Tensor,
        expert_ids: torch.Tensor,
    ) -> tuple[torch.Tensor]:
        """Sum each token's expert rows, times probability unless weighted before: one tensor."""
        if self.copies is not None:
            rows = (
                DTensor.from_local(rows, self.copies, [Partial()], run_check=False)
                .redistribute(placements=[Replicate()])
                .to_local()
            )
        rows_by_choice = return_rows(rows, route).unflatten(0, expert_ids.shape)
        return (
            (rows_by_choice if self.weighed else probabilities.unsqueeze(-1) * rows_by_choice).sum(
                -2
            ),
        )


def shard_expert_layer(
    modules: Iterable[nn.Module], mesh: DeviceMesh | None, owners: ExpertOwners | None
) -> tuple[GroupedProjections, ...]:
    """Shard a layer's experts over `mesh`, set its permutations' `owners`, return its projections.

    Returns the layer's grouped projections.

    Args:
        mesh: ``ep`` and ``etp``; None: each rank has all experts.
    """
    projections = []
    for module in modules:
        if isinstance(module, NativePermute):
            module.owners = owners
        if isinstance(module, GroupedProjections):
            projections.append(module)
            if mesh is not None:
                module.shard(mesh)
    return tuple(projections)


def shard_expert_width(modules: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Shard the inner width of all experts of a layer over ranks that have the same tokens."""
    for module in modules:
        if isinstance(module, NativePermute | NativeUnpermute):
            module.copies = mesh
        if isinstance(module, GroupedProjections):
            module.shard(mesh)
