"""The event kernel, and lowering with simulation."""

from __future__ import annotations

from shardwright.api.request_to_problem import problem_of
from shardwright.search.search_request import Request
from shardwright.simulator.event_simulation_inputs import plan_kernel_tasks
from shardwright.simulator.kernel.event_kernel import simulate
from shardwright.simulator.simulate_plan import lower, plan_of_grid, simulate_grid
from shardwright.strategy.text.grid_notation import parse_grid


class Pipeline:
    """16 stages, 4 chunks a stage, 256 microbatches, at 512 and 16,384 devices."""

    params = (512, 16384)
    param_names = ("devices",)
    repeat = 7
    number = 1

    def setup(self, devices: int) -> None:
        """Price the strategy and compile the kernels."""
        dp = devices // 128
        request = Request(
            model="megatron-1t", cluster=f"h100-sxm:{devices}", seq_len=2048, global_batch=256 * dp
        )
        self.problem = problem_of(request)
        self.grid = parse_grid(f"tp8 sp pp16 vpp4 dp{dp} mbs1 zero1 schedule=interleaved-1f1b")
        self.plan = plan_of_grid(self.problem, self.grid)
        self.time_lower_and_simulate(devices)
        self.program, self.costs = lower(self.problem, self.plan)
        self.tasks = plan_kernel_tasks(self.problem, self.program, self.costs)

    def time_kernel(self, devices: int) -> None:
        """The event kernel alone, contention on."""
        simulate(*self.tasks)

    def time_simulate(self, devices: int) -> None:
        """Contention on: resources, durations and the kernel."""
        simulate(*plan_kernel_tasks(self.problem, self.program, self.costs))

    def time_lower_and_simulate(self, devices: int) -> None:
        """From a strategy to its timeline and memory, trees and prices of before kept."""
        simulate_grid(self.problem, self.grid)
