"""Mesh costs without the seconds of parts that are free: gradient synchronisation, update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from shardwright.cost.gradients.layer_synchronisation_table_classes import OWNERS, SUMS
from shardwright.cost.tables.block_layer_mesh_table_classes import MeshTable
from shardwright.program.training_problem import Problem

_SYNC_SECONDS: Final = (*SUMS, "fetch", "refetch", *OWNERS, "tied_all_reduce", "tied_reduce")
_MESH_SECONDS: Final = ("shares", "gather_copy_s", "regather_copy_s", "reduce_copy_s")


def without_free_parts(problem: Problem, meshes: MeshTable) -> MeshTable:
    """The mesh costs with 0 s for the parts of `Problem.free_parts`; the bytes stay.

    Synchronisation that is free fills no links, so it slows no other communication.
    """
    zeros: dict[str, Any] = {}
    if "sharding" in problem.free_parts:
        sync = replace(
            meshes.sync,
            **{name: np.zeros_like(getattr(meshes.sync, name)) for name in _SYNC_SECONDS},
        )
        zeros = {name: np.zeros_like(getattr(meshes, name)) for name in _MESH_SECONDS}
        zeros["sync"] = sync
    if "optimizer" in problem.free_parts:
        zeros["norm_s"] = np.zeros_like(meshes.norm_s)
    return replace(meshes, **zeros) if zeros else meshes
