"""Table of gradient and parameter synchronisation: seconds and elements of one layer.

One column for each block.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass

KINDS: Final = ("dense", "experts")
"""Elements that dp x cp hold, and that edp holds."""


PASSES: Final = ("forward", "backward")
"""For which ZeRO-3 gathers parameters."""

SUMS: Final = ("all_reduce", "reduce", "gather", "scatter", "apart")
FETCHES: Final = (("fetch", "parts"), ("refetch", "reparts"))
SYNCS: Final = (*SUMS, *FETCHES[0], *FETCHES[1])
"""Columns of a `SyncTable`: of `layer_sync_seconds`, and `fetch_seconds` for each of `PASSES`."""
OWNERS: Final = ("to_owners", "from_owners")
"""Columns of a `SyncTable` that `optimizer_state_owner_exchange_seconds.owner_seconds` fills."""


class ShardedElements(NamedTuple):
    """Elements of one device whose states are sharded by the same degrees.

    Args:
        optimizer, gradient, parameter: devices that share one copy of each state (1 = whole).
            Frozen ones have the last alone.
        apart: optimizer states of the device are of elements outside its shard of the parameters.
    """

    elements: int
    optimizer: int
    gradient: int
    parameter: int
    apart: bool = False

    def held(self, level: int) -> int:
        """Elements of one state that a device holds: ceil(elements / the degree of ZeRO `level`).

        The state is the one that ZeRO stage `level` begins to shard.
        """
        return -(-self.elements // (self.optimizer, self.gradient, self.parameter)[level - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTable:
    """Seconds and elements to synchronise one layer of each block on each mesh, (blocks, n).

    Args:
        all_reduce: of gradients over all holders (ZeRO-0).
        reduce: reduce_scatter in the sharding group and all_reduce across groups.
        gather: all_gather of parameters in the group.
        fetch, scatter: gather and reduce under ZeRO-3, in the runtime's pieces: frozen parameters
            are gathered too.
        refetch: the gather before the backward, of parameters that have one.
        parts, reparts: tensors in the lists of a layer's gathers.
        apart: the part of a reduction that runs beside other layers' gathers and reductions
            (`Runtime.sums_replicas_apart`).
        tied_all_reduce, tied_reduce: (n,) the same of all weights that other stages use too, which
            are summed last; the sums above leave them out.
        to_owners, from_owners: of a general plan's device whose reduction groups sum for
            themselves, once a step: pieces of gradients to the owners of optimizer states, and new
            values from them; sums and gathers of elements that no group shards too.
        shard, expert_shard: members that share one copy of the states, shape (n,).
        dense, experts, spread: local trainable elements (see
            `block_parameter_elements_by_reduction_group.ELEMENTS`).
        frozen: without gradient.
        frozen_dense, frozen_experts: of them those that `shard` and `expert_shard` members have one
            copy of.
        tied: trainable elements that another block owns.
        narrow: of dense and experts, those that a recipe of 8 or 4 bits quantises.
        gathered, regathered: elements that ZeRO-3 gathers before a layer's forward, and before its
            backward.
        own_gathered, own_regathered: of them the device's own shards.
        own_reduced: its shards of the gradients that each microbatch's sums leave.
        narrow_gathered, narrow_regathered: those that a recipe quantises.
        cuts, frozen_cuts: of a general plan's device, whose parameters may be cut differently: all
            of its trainable and all of its frozen elements; no cuts = by `shard`.
    """

    all_reduce: FloatArray
    reduce: FloatArray
    gather: FloatArray
    fetch: FloatArray
    scatter: FloatArray
    refetch: FloatArray
    parts: FloatArray
    reparts: FloatArray
    apart: FloatArray
    to_owners: FloatArray
    from_owners: FloatArray
    tied_all_reduce: FloatArray
    tied_reduce: FloatArray
    shard: IntArray
    expert_shard: IntArray
    dense: IntArray
    experts: IntArray
    spread: IntArray
    frozen: IntArray
    frozen_dense: IntArray
    frozen_experts: IntArray
    tied: IntArray
    narrow: IntArray
    gathered: IntArray
    regathered: IntArray
    own_gathered: FloatArray
    own_regathered: FloatArray
    own_reduced: FloatArray
    narrow_gathered: IntArray
    narrow_regathered: IntArray
    cuts: tuple[ShardedElements, ...] = ()
    frozen_cuts: tuple[ShardedElements, ...] = ()
