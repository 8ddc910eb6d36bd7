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
    """Create a process group of some ranks under a given name, called by its members only.

    ``torch.distributed.new_group`` numbers its groups. If only members call it, they agree on the
    number only if each belongs to equally many groups. The group has its own connection to the
    store, because threads that share one wait for each other.

    Args:
        name: unique among the groups of the world.
        ranks: sorted, with the caller's rank.
    """
    world = dist.group.WORLD
    assert world is not None, "ranks have met"
    _, store = c10d._world.pg_map[world]
    created: Any = c10d._new_process_group_helper(
        len(ranks),
        list(ranks).index(dist.get_rank()),
        list(ranks),
        c10d.Backend(backend),
        store.clone(),
        c10d.GroupName(name) if hasattr(c10d, "GroupName") else name,
        timeout=timeout,
    )
    group = created[0]
    c10d._world.pg_group_ranks[group] = {rank: number for number, rank in enumerate(ranks)}
    return cast(dist.ProcessGroup, group)
