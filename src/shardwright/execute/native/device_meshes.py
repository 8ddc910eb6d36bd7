"""Device meshes of a grid on PyTorch: for dense parameters, for experts and for positions.

Each mesh arranges the same ranks along its own dims, so a rank's coordinates in two meshes are
unrelated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

import torch
from torch.distributed.device_mesh import DeviceMesh

from shardwright.execute.native.token_dispatch import ExpertOwners
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.grid.expert_mesh import dense_axes, fold
from shardwright.strategy.grid.grid_to_plan import expert_shard
from shardwright.strategy.grid.parallelism_grid import Grid

RankAxes = tuple[tuple[int, int], ...]
"""(size, stride) of the rank axes that form a mesh dim, innermost first."""
SHARDS = ("shard", "expert_shard")
REPLICAS = ("dp", "ring", "ulysses")
"""Axes whose ranks hold the same parameters, except experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridMeshes:
    """Device meshes of a run for dense parameters, experts and context parallelism.

    Dims of one rank are left out, because each costs a process group; the dims of shards are kept.

    Args:
        dense: ``replicate`` x ``shard`` over dp and cp, and ``tp``. All meshes have the dim ``pp``.
        experts: if experts are placed differently: ``expert_replicate`` x ``expert_shard`` over the
            ranks with copies of an expert, ``ep`` and ``etp``.
        owners: with both ``ep`` and ``etp``, a mesh that joins the two in the dim ``owners``.
        context: under cp, ``ring`` and ``ulysses``.
    """

    dense: DeviceMesh
    experts: DeviceMesh | None
    owners: DeviceMesh | None
    context: DeviceMesh | None

    def with_dims(self, names: Iterable[str]) -> DeviceMesh:
        """The first of the meshes dense, expert and context that has all dims in `names`."""
        dim_names = set(names)
        return next(
            m
            for m in (self.dense, self.experts, self.context)
            if m is not None and dim_names <= set(m.mesh_dim_names or ())
        )


def has_expert_mesh(grid: Grid) -> bool:
    """True if experts are placed differently from other parameters: with ep, etp or sp.

    Under sp without ep and etp, every rank of tp has whole experts.
    """
    return grid.ep * grid.etp > 1 or grid.sp


def grid_meshes(grid: Grid, *, experts: bool, device: str) -> GridMeshes:
    """Create the device meshes of a grid; a device's number is its rank.

    Args:
        experts: the model has experts.
        device: type of torch device, such as cpu.
    """
    axes: dict[str, RankAxes] = {axis: ((size, stride),) for axis, size, stride in dense_axes(grid)}
    stages = ((grid.pp, grid.strides()["pp"]),)
    replicas = tuple(steps[0] for axis, steps in axes.items() if axis in REPLICAS)
    shard, replicate = _split_axes(replicas, (grid.shard or grid.dp * grid.cp) if grid.zero else 1)
    rest = tuple(steps[0] for axis, steps in axes.items() if axis in ("dp", "tp"))
    context = {
        "pp": stages,
        "rest": rest,
        "ring": axes.get("ring", ()),
        "ulysses": axes.get("ulysses", ()),
    }
    spread = _expert_axes(grid) if experts and has_expert_mesh(grid) else None
    owned = (
        {
            "pp": stages,
            "rest": spread["expert_shard"] + spread["expert_replicate"],
            "owners": spread["ep"] + spread["etp"],
        }
        if spread
        else {}
    )
    return GridMeshes(
        dense=_mesh(
            {"pp": stages, "replicate": replicate, "shard": shard, "tp": axes.get("tp", ())}, device
        ),
        experts=_mesh({"pp": stages, **spread}, device) if spread else None,
        owners=_mesh(owned, device) if grid.ep > 1 and grid.etp > 1 and spread else None,
        context=_mesh(context, device) if grid.cp > 1 else None,
    )


def _expert_axes(grid: Grid) -> dict[str, RankAxes]:
    """(size, stride) rank axes of the expert mesh's dims: replicate, shard, ep and etp."""
    atoms = fold(grid)
    assert atoms is not None, "a legal grid folds"
    copies = tuple((a.size, a.stride) for a in atoms if a.expert == "edp")
    shard, replicate = _split_axes(copies, expert_shard(grid) if grid.zero else 1)
    axes_of_experts = {
        name: tuple((a.size, a.stride) for a in atoms if a.expert == name) for name in ("ep", "etp")
    }
    return {"expert_replicate": replicate, "expert_shard": shard, **axes_of_experts}


def _split_axes(axes: RankAxes, inner: int) -> tuple[RankAxes, RankAxes]:
    """Divide (size, stride) axes into those of the `inner` nearest ranks, and the rest.

    `inner` divides the number of ranks.
    """
    near: list[tuple[int, int]] = []
    far: list[tuple[int, int]] = []
    for size, stride in axes:
        inner_size = gcd(size, inner)
        inner //= inner_size
        near.append((inner_size, stride))
        far.append((size // inner_size, stride * inner_size))
    return tuple(near), tuple(far)


def _mesh(dims: dict[str, RankAxes], device: str) -> DeviceMesh:
    """Create a device mesh with the dims that have more than one rank, and the shard dims."""
    ranks = torch.zeros((), dtype=torch.int64)
    mesh_dims = {
        name: steps
        for name, steps in dims.items()
        if name in SHARDS or any(size > 1 for size, _ in steps)
    }
    for steps in mesh_dims.values():
        ranks = ranks.unsqueeze(-1) + _axis_ranks(steps)
    return DeviceMesh(device, ranks, mesh_dim_names=tuple(mesh_dims))


def mesh_dim(mesh: DeviceMesh | None, name: str) -> DeviceMesh | None:
    """One-dimensional submesh of the dim `name`; None without a mesh or such a dim (one rank)."""
    return mesh[name] if mesh is not None and name in (mesh.mesh_dim_names or ()) else None


def expert_shard_dims(meshes: GridMeshes) -> DeviceMesh | None:
    """Submesh of the experts' mesh with the dims that cut experts (ep, etp); None without one."""
    dims = meshes.experts.mesh_dim_names or () if meshes.experts is not None else ()
    names = tuple(name for name in ("ep", "etp") if name in dims)
    return meshes.experts[names] if names and meshes.experts is not None else None


def expert_owner_ranks(meshes: GridMeshes) -> ExpertOwners | None:
    """Process group with all experts, and each rank's ep position; None if each rank has all."""
    parts, experts = expert_shard_dims(meshes), meshes.experts
    if parts is None or experts is None:
        return None
    owner_mesh, dims = (
        meshes.owners["owners"] if meshes.owners is not None else parts,
        experts.mesh_dim_names or (),
    )
    places = [
        (experts.mesh == rank).nonzero().flatten().tolist() for rank in owner_mesh.mesh.tolist()
    ]
    return ExpertOwners(
        group=owner_mesh.get_group(),
        runs=tuple(place[dims.index("ep")] if "ep" in dims else 0 for place in places),
    )


def replica_mesh(mesh: DeviceMesh, replicate: str, shard: str) -> DeviceMesh:
    """Submesh of ranks with equal parameters: (replicate, shard), or (shard,) if no replicas."""
    return mesh[replicate, shard] if mesh_dim(mesh, replicate) is not None else mesh[shard]


def _axis_ranks(axes: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Rank offsets along a mesh dim made of (size, stride) axes, ascending from 0."""
    ranks = torch.zeros(1, dtype=torch.int64)
    for size, stride in sorted(axes, key=lambda axis: -axis[1]):
        ranks = (ranks.unsqueeze(-1) + torch.arange(size) * stride).flatten()
    return ranks
