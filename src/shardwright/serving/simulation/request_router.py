"""Which rank a request goes to when it arrives."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from shardwright.compiled import allocation_free
from shardwright.serving.policy.cache_blocks import cached_tokens
from shardwright.serving.policy.scheduler_state import INPUTS, NUM_RUNNING, NUM_WAITING, State


class Router(StrEnum):
    """ROUND_ROBIN: one worker after the other, and one rank of it after the other. SHORTEST: to the
    rank with the fewest requests, waiting or running. PREFIX: to the one that has the most of the
    prompt's tokens in its cache, less its requests times the prompt's tokens over the most that run
    at once; so a long queue outweighs a cache.
    """

    ROUND_ROBIN = "round-robin"
    SHORTEST = "shortest-queue"
    PREFIX = "prefix-aware"


ROUTERS: Final = tuple(Router)
_ROUND_ROBIN, _SHORTEST, _PREFIX = range(3)


@allocation_free
def route(state: State, router: int, request: int, order: int, workers: int) -> int:
    """The rank of the `order`-th request of all. Ties go to the lowest rank."""
    ranks = state.ranks.shape[0]
    each = ranks // workers
    if router == _ROUND_ROBIN:
        return int((order % workers) * each + (order // workers) % each)
    best, best_score = 0, 0.0
    for rank in range(ranks):
        score = -float(state.ranks[rank, NUM_WAITING] + state.ranks[rank, NUM_RUNNING])
        if router == _PREFIX:
            score *= state.requests[request, INPUTS] / state.running.shape[1]
            score += cached_tokens(state, rank, request)
        if rank == 0 or score > best_score:
            best, best_score = rank, score
    return best


def num_of_router(router: Router) -> int:
    """As `route` takes it."""
    return ROUTERS.index(router)
