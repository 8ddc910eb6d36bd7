"""Result of a search mesh by mesh: the members expanded, and the meshes left with their bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.search.grid.best_first_search import SearchOutcome
from shardwright.search.grid.bounds.members_with_time_and_memory import ExpandedMembers
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.members.legal_degrees_and_axis_orders import MESH, MeshRows
from shardwright.search.grid.search_overlapped_and_two_lane_schedules import PairedSearch


@dataclass(slots=True)
class Searched:
    """Results of the search of a whole grid space.

    Args:
        outcome: result of refining the expanded members.
        expanded: expanded sets of members.
        left: meshes that were not expanded; the (meshes,) lower bounds in seconds of their members,
            inf if none is legal; and the part of the space to which they belong.
        repeated: meshes on which a part of the space has the same plans as the first part.
        refused: combinations of axis values in parts whose options the runtime rejects together.
        paired: results of the schedules that only general plans run.
    """

    outcome: SearchOutcome = field(default_factory=SearchOutcome)
    expanded: list[ExpandedMembers] = field(default_factory=list)
    left: list[tuple[MeshRows, FloatArray, Space]] = field(default_factory=list)
    repeated: list[MeshRows] = field(default_factory=list)
    refused: int = 0
    paired: list[PairedSearch] = field(default_factory=list)

    def may_reach(self, meshes: MeshRows, space: Space, seconds: float) -> BoolArray:
        """(meshes,) True unless all members of `space` there are known to exceed `seconds`."""
        mesh_sets, bound_sets = [meshes], [np.full(len(meshes), -np.inf)]
        for part in self.expanded:
            if part.space.chosen == space.chosen and part.whole is not None:
                members = part.whole.members
                of_mesh = np.full(len(members.meshes), np.inf)
                np.minimum.at(
                    of_mesh, members.outers.columns["mesh"], members.least_of(part.whole.seconds)
                )
                # `members.meshes` are those that have a legal member.
                mesh_sets += [part.meshes, members.meshes]
                bound_sets += [np.full(len(part.meshes), np.inf), of_mesh]
        for unexpanded, bounds, part_space in self.left:
            if part_space.chosen == space.chosen:
                mesh_sets.append(unexpanded)
                bound_sets.append(bounds)
        mesh_numbers = _mesh_numbers(mesh_sets)
        # Assignment keeps the last bound of each mesh.
        bound = np.full(int(mesh_numbers.max(initial=-1)) + 1, -np.inf)
        bound[mesh_numbers] = np.concatenate(bound_sets)
        reached: BoolArray = bound[mesh_numbers[: len(meshes)]] <= seconds
        return reached


_CODES: Final = 2**62
"""Codes of meshes are below this, so that they fit into 64 bits."""


def _mesh_numbers(sets: list[MeshRows]) -> IntArray:
    """(rows,) number of each mesh over all `sets` in turn; equal meshes have equal numbers."""
    code, size = np.zeros(sum(map(len, sets)), dtype=np.int64), 1
    for name in (*MESH, "order"):
        column = np.concatenate([meshes.columns[name] for meshes in sets])
        values = int(column.max(initial=0)) + 1
        if size * values > _CODES:
            code, size = np.unique(code, return_inverse=True)[1].reshape(-1), len(code)
        code, size = code * values + column, size * values
    return np.unique(code, return_inverse=True)[1].reshape(-1)
