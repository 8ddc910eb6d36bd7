"""Routing of arriving requests to the ranks of workers."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from shardwright.kernel_compilation import allocation_free
from shardwright.serving.policy.kv_cache_blocks import cached_tokens
from shardwright.serving.policy.scheduler_state import (
    INPUTS,
    NUM_RUNNING,
    NUM_WAITING,
    SchedulerState,
)


class Router(StrEnum):
    """Rule that chooses the rank of an arriving request.

    ROUND_ROBIN: the workers in turn, and the ranks of each in turn. SHORTEST: the rank with the
    fewest requests, waiting or running. PREFIX: the rank with the most tokens of the prompt in its
    cache, less its requests times the prompt's tokens over the most that run at once; so a long
    queue outweighs a cache.
    """

    ROUND_ROBIN = "round-robin"
    SHORTEST = "shortest-queue"
    PREFIX = "prefix-aware"


ROUTERS: Final = tuple(Router)
_ROUND_ROBIN, _SHORTEST, _PREFIX = range(3)


@allocation_free
def route(state: SchedulerState, router: int, request: int, order: int, workers: int) -> int:
    """Choose a request's rank: round robin by `order`, fewest requests, or cached less load."""
    ranks = state.ranks.shape[0]
    ranks_per_worker = ranks // workers
    if router == _ROUND_ROBIN:
        return int((order % workers) * ranks_per_worker + (order // workers) % ranks_per_worker)
    best, best_score = 0, 0.0
    for rank in range(ranks):
        score = -float(state.ranks[rank, NUM_WAITING] + state.ranks[rank, NUM_RUNNING])
        if router == _PREFIX:
            score *= state.requests[request, INPUTS] / state.running.shape[1]
            score += cached_tokens(state, rank, request)
        if rank == 0 or score > best_score:
            best, best_score = rank, score
    return best


def router_number(router: Router) -> int:
    """Number of a rule that sends arriving requests to ranks, as the compiled `route` takes it."""
    return ROUTERS.index(router)
