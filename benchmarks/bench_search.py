"""Search times: from a parsed problem to a decided plan, lowering included."""

from __future__ import annotations

from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.find_best_grid import find
from shardwright.search.search_request import Request

LLAMA = Request(model="llama-3.1-405b", cluster="h100-sxm:16384", seq_len=8192, global_batch=2048)
GPT3 = Request(
    model="gpt3-175b",
    cluster="a100-sxm-80gb:4096",
    seq_len=2048,
    global_batch=1536,
    space="exhaustive",
)


class _Search:
    """A problem, parsed once, its kernels loaded."""

    request = LLAMA
    repeat = 7
    number = 1
    timeout = 600

    def setup(self) -> None:
        """Parse, and search once so that compiled kernels are loaded."""
        self.problem = problem_of(self.request)
        self.facts = facts_of(self.problem)
        self.space = space_of(self.request, self.problem, self.facts)
        self.capacity = smallest_memory_bytes(self.problem.cluster)
        self.time_search()

    def time_search(self) -> None:
        """The certified best and three alternatives."""
        find(self.problem, self.space, self.facts, capacity=self.capacity, top=4)

    def time_bound(self) -> None:
        """Enumerating and bounding (B0) every member."""
        bound_space(self.problem, self.space, self.facts, capacity=self.capacity)

    def track_members(self) -> int:
        """Legal, distinct members."""
        return bound_space(
            self.problem, self.space, self.facts, capacity=self.capacity
        ).members.num_members


class Llama405B(_Search):
    """Llama 3.1 405B on 16,384 H100, standard space."""


class Gpt3(_Search):
    """GPT-3 175B on 4,096 A100, exhaustive space."""

    request = GPT3
