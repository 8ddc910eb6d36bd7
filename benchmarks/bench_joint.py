"""Times of the joint search over a pipeline's cut, splits, memory choices and orders."""

from __future__ import annotations

from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.search.joint.find_joint import FOUND_ORDERS, NAMED_ORDERS, JointDetail, find_joint
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import Request


class EightyLayers:
    """80 layers (Llama-3.1 70B) on 1,024 H100:
    the bar is a gap of 1 % in 5 s, with named orders.
    """

    repeat = 7
    number = 1
    timeout = 600
    orders = NAMED_ORDERS

    def setup(self) -> None:
        """Parse, and search once so that compiled kernels are loaded."""
        request = Request(
            model="llama-3.1-70b", cluster="h100-sxm:1024", seq_len=8192, global_batch=1024
        )
        self.problem = problem_of(request)
        self.facts = facts_of(self.problem)
        self.space = space_of(request, self.problem, self.facts)
        self.answer = self._search()

    def _search(self) -> GeneralAnswer[JointDetail]:
        capacity = smallest_memory_bytes(self.problem.cluster)
        return find_joint(
            self.problem,
            self.space,
            self.facts,
            capacity=capacity,
            orders=self.orders,
            tolerance=0.01,
        )

    def time_search(self) -> None:
        """The certified best within 1 %."""
        self._search()

    def track_gap(self) -> float:
        """Proven gap in percent."""
        return 100.0 * self.answer.certificate.gap


class EightyLayersFoundOrders(EightyLayers):
    """The same with found orders."""

    repeat = 1
    orders = FOUND_ORDERS
