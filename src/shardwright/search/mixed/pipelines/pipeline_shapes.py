"""Pipeline shapes, as array columns: one or two runs of equal stages.

A run is a number of stages with the same pool, mesh and microbatch size.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray, distinct
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.mixed.stages.cheapest_recompute_that_fits import MOST_STAGES
from shardwright.search.mixed.stages.stage_cost_table import StageTable

NONE = -1
"""Row of the second run, for a shape with a single run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Pipeline shapes as array columns; s = shape.

    Args:
        rows: (s, 2) table row of the stages of each run.
        stages: (s, 2) number of stages of each run.
        mbs: (s,) samples of a microbatch.
        use: (s, pools) devices of a replica.
        nodes: (s,) nodes that these devices fill.
        tp: (s,) the smaller of the runs' tensor parallel degrees.
        sharded: (s,) True where its lane shards gradients or parameters among its replicas.
        least, most: (s,) fewest and most replicas of the lane.
    """

    rows: IntArray
    stages: IntArray
    mbs: IntArray
    use: IntArray
    nodes: FloatArray
    tp: IntArray
    sharded: BoolArray
    least: IntArray
    most: IntArray

    def __len__(self) -> int:
        """Number of shapes."""
        return len(self.mbs)

    def take(self, indices: IntArray) -> Shapes:
        """The shapes at the places `indices`."""
        return Shapes(
            **{
                name: np.ascontiguousarray(getattr(self, name)[indices])
                for name in Shapes.__slots__
            }
        )


def shapes_of(table: StageTable) -> Shapes:
    """Enumerate every pipeline shape that fits on the devices.

    A shape has one run, or two runs of different pool or mesh in either order, with at most as many
    stages as there are layers. Lanes that shard have rows of their own for one stage: their other
    shapes have two stages or more.
    """
    most = min(MOST_STAGES, table.layers)
    rows, stages = [], []
    lengths = np.arange(1, most + 1)
    several = np.arange(len(table)) < table.several
    least, longest = np.where(several & table.sharded, 2, 1), np.where(several, most, 1)
    alike = (table.mbs, table.zero, table.least)
    for one in range(len(table)):
        room = table.pools[table.pool[one]].devices // table.size[one]
        single = lengths[(lengths <= room) & (lengths >= least[one]) & (lengths <= longest[one])]
        rows.append(np.stack([np.full(len(single), one), np.full(len(single), NONE)], axis=1))
        stages.append(np.stack([single, np.zeros(len(single), dtype=np.int64)], axis=1))
        for other in range(table.several if one < table.several else 0):
            if other != one and all(column[one] == column[other] for column in alike):
                pair = np.stack(np.meshgrid(lengths, lengths, indexing="ij"), axis=-1).reshape(
                    -1, 2
                )
                pair = pair[pair.sum(axis=1) <= most]
                rows.append(np.tile([one, other], (len(pair), 1)))
                stages.append(pair)
    both, count = np.concatenate(rows), np.concatenate(stages)
    use = np.zeros((len(both), len(table.pools)), dtype=np.int64)
    tp, size = (np.where(both >= 0, column[both], 0) for column in (table.tp, table.size))
    for run in range(2):
        np.add.at(
            use, (np.arange(len(both)), table.pool[both[:, run]]), count[:, run] * size[:, run]
        )
    fits = (use <= [pool.devices for pool in table.pools]).all(axis=1)
    both, count, use, tp = both[fits], count[fits], use[fits], tp[fits]
    return Shapes(
        rows=np.ascontiguousarray(both),
        stages=np.ascontiguousarray(count),
        mbs=table.mbs[both[:, 0]],
        use=use,
        nodes=use @ (1.0 / np.array([pool.node for pool in table.pools])),
        tp=np.where(both[:, 1] >= 0, tp.min(axis=1, where=tp > 0, initial=2**30), tp[:, 0]),
        sharded=table.sharded[both[:, 0]],
        least=table.least[both[:, 0]],
        most=table.most[both[:, 0]],
    )


def group_by_device_use(shapes: Shapes) -> tuple[IntArray, IntArray]:
    """Group number of each shape by equal use of all pools, and the first shape of each group.

    Returns the group number of each shape, and the first shape of each group.
    """
    keys = shapes.use @ np.cumprod([1, *(shapes.use.max(axis=0)[:-1] + 1)])
    some, place = np.unique(keys, return_inverse=True)
    first = np.zeros(len(some), dtype=np.int64)
    first[place[::-1]] = np.arange(len(shapes))[::-1]
    assert len(distinct(place)) == len(some)
    return place.reshape(-1).astype(np.int64), first
