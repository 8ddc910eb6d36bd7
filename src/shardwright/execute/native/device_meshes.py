"""The meshes of a grid on PyTorch: one for what every rank of a stage has, one for experts, one for
positions.

Each counts the same ranks along dims of its own, so a rank's place in one says nothing of its place
in another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

import torch
from torch.distributed.device_mesh import DeviceMesh

from shardwright.execute.native.token_dispatch import Owners
from shardwright.lazy_dataclass import dataclass
from shardwright.strategy.grid.expert_mesh import dense_axes, fold
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_to_plan import expert_shard

Steps = tuple[tuple[int, int], ...]
"""(size, stride) of what a dim of a mesh is made of, innermost first."""
SHARDS = ("shard", "expert_shard")
REPLICAS = ("dp", "ring", "ulysses")
"""Axes whose ranks have the same parameters, but for those of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """The meshes of a run. Dims of one rank are left out, as each costs a group of processes; the
    last one of shards alone stays.

    Args:
        dense: ``replicate`` x ``shard`` over dp and cp, and ``tp``.
        experts: of a grid with experts of their own, ``expert_replicate`` x ``expert_shard`` over
            what has copies of an expert, ``ep`` and ``etp``.
        owners: where both are, ``owners`` are the two in one.
        context: under cp, ``ring`` and ``ulysses``. ``pp`` is a dim of each.
    """

    dense: DeviceMesh
    experts: DeviceMesh | None
    owners: DeviceMesh | None
    context: DeviceMesh | None

    def of(self, names: Iterable[str]) -> DeviceMesh:
        """The mesh whose dims have these names."""
        wanted = set(names)
        return next(
            m
            for m in (self.dense, self.experts, self.context)
            if m is not None and wanted <= set(m.mesh_dim_names or ())
        )


def spreads_experts(grid: Grid) -> bool:
    """True if experts are not placed like the other parameters: on ranks of ep and etp, or beside
    sp whole on each rank of tp.
    """
    return grid.ep * grid.etp > 1 or grid.sp


def grid_meshes(grid: Grid, *, experts: bool, device: str) -> Meshes:
    """The meshes of a grid. A device's number is its rank.

    Args:
        experts: the model has some.
        device: type of device, such as cpu.
    """
    axes: dict[str, Steps] = {axis: ((size, stride),) for axis, size, stride in dense_axes(grid)}
    stages = ((grid.pp, grid.strides()["pp"]),)
    replicas = tuple(steps[0] for axis, steps in axes.items() if axis in REPLICAS)
    shard, replicate = _divided(replicas, (grid.shard or grid.dp * grid.cp) if grid.zero else 1)
    rest = tuple(steps[0] for axis, steps in axes.items() if axis in ("dp", "tp"))
    context = {
        "pp": stages,
        "rest": rest,
        "ring": axes.get("ring", ()),
        "ulysses": axes.get("ulysses", ()),
    }
    spread = _expert_steps(grid) if experts and spreads_experts(grid) else None
    owned = (
        {
            "pp": stages,
            "rest": spread["expert_shard"] + spread["expert_replicate"],
            "owners": spread["ep"] + spread["etp"],
        }
        if spread
        else {}
    )
    return Meshes(
        dense=_mesh(
            {"pp": stages, "replicate": replicate, "shard": shard, "tp": axes.get("tp", ())}, device
        ),
        experts=_mesh({"pp": stages, **spread}, device) if spread else None,
        owners=_mesh(owned, device) if grid.ep > 1 and grid.etp > 1 and spread else None,
        context=_mesh(context, device) if grid.cp > 1 else None,
    )


def _expert_steps(grid: Grid) -> dict[str, Steps]:
    atoms = fold(grid)
    assert atoms is not None, "a legal grid folds"
    copies = tuple((a.size, a.stride) for a in atoms if a.expert == "edp")
    shard, replicate = _divided(copies, expert_shard(grid) if grid.zero else 1)
    own = {
        name: tuple((a.size, a.stride) for a in atoms if a.expert == name) for name in ("ep", "etp")
    }
    return {"expert_replicate": replicate, "expert_shard": shard, **own}


def _divided(steps: Steps, inner: int) -> tuple[Steps, Steps]:
    """Steps of the innermost `inner` ranks, and of the rest; `inner` divides their number."""
    near: list[tuple[int, int]] = []
    far: list[tuple[int, int]] = []
    for size, stride in steps:
        taken = gcd(size, inner)
        inner //= taken
        near.append((taken, stride))
        far.append((size // taken, stride * taken))
    return tuple(near), tuple(far)


def _mesh(dims: dict[str, Steps], device: str) -> DeviceMesh:
    ranks = torch.zeros((), dtype=torch.int64)
    kept = {
        name: steps
        for name, steps in dims.items()
        if name in SHARDS or any(size > 1 for size, _ in steps)
    }
    for steps in kept.values():
        ranks = ranks.unsqueeze(-1) + _offsets(steps)
    return DeviceMesh(device, ranks, mesh_dim_names=tuple(kept))


def dim(mesh: DeviceMesh | None, name: str) -> DeviceMesh | None:
    """A dim of a mesh; None: it has one rank."""
    return mesh[name] if mesh is not None and name in (mesh.mesh_dim_names or ()) else None


def owned_by(meshes: Meshes) -> DeviceMesh | None:
    """Of experts' mesh the dims that cut them; None: each rank has them all."""
    dims = meshes.experts.mesh_dim_names or () if meshes.experts is not None else ()
    names = tuple(name for name in ("ep", "etp") if name in dims)
    return meshes.experts[names] if names and meshes.experts is not None else None


def owners_of(meshes: Meshes) -> Owners | None:
    """The ranks that have all experts together with this one; None: it has them all."""
    parts, experts = owned_by(meshes), meshes.experts
    if parts is None or experts is None:
        return None
    own, dims = (
        meshes.owners["owners"] if meshes.owners is not None else parts,
        experts.mesh_dim_names or (),
    )
    places = [(experts.mesh == rank).nonzero().flatten().tolist() for rank in own.mesh.tolist()]
    return Owners(
        group=own.get_group(),
        runs=tuple(place[dims.index("ep")] if "ep" in dims else 0 for place in places),
    )


def holders(mesh: DeviceMesh, replicate: str, shard: str) -> DeviceMesh:
    """The mesh of ranks that hold the same parameters, in the form that FSDP2 takes."""
    return mesh[replicate, shard] if dim(mesh, replicate) is not None else mesh[shard]


def _offsets(steps: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Ranks of a dim, counted from its first. They rise, as the ranks of a process group do."""
    found = torch.zeros(1, dtype=torch.int64)
    for size, stride in sorted(steps, key=lambda step: -step[1]):
        found = (found.unsqueeze(-1) + torch.arange(size) * stride).flatten()
    return found
