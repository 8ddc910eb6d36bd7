"""Functions of torch.distributed without a public name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def named_group(
    name: str, ranks: Sequence[int], *, backend: str, timeout: timedelta
) -> dist.ProcessGroup:
    """A group of some ranks, made by its members alone, under a name that all of them give.

    ``torch.distributed.new_group`` numbers its groups: where only members take part, it finds one
    name on all of them only if each has been of equally many groups. The store is asked over a
    connection of the group's own, as threads wait for each other on one.

    Args:
        name: no other group of the world's has it.
        ranks: sorted; the caller's is among them.
    """
    world = dist.group.WORLD
    assert world is not None, "ranks have met"
    _, store = c10d._world.pg_map[world]
    whole: Any = c10d._new_process_group_helper(
        len(ranks),
        list(ranks).index(dist.get_rank()),
        list(ranks),
        c10d.Backend(backend),
        store.clone(),
        c10d.GroupName(name) if hasattr(c10d, "GroupName") else name,
        timeout=timeout,
    )
    made = whole[0]
    c10d._world.pg_group_ranks[made] = {rank: number for number, rank in enumerate(ranks)}
    return cast(dist.ProcessGroup, made)
