"""Search for the best plan of the exact space: every plan of a few lanes on a few devices."""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.request_to_problem import (
    EXACT,
    problem_of,
    require_unequal_stages,
    require_unranked,
    with_defaults,
)
from shardwright.api.simulate_grid_or_plan_of_request import with_simulation
from shardwright.errors import UsageError
from shardwright.hardware.scale_network_limit_devices_reserve_memory import reserve_memory_share
from shardwright.progress_callback import Progress
from shardwright.search.exact.enumerate_lane_distributions import require_few_members
from shardwright.search.exact.exact_space import exact_space
from shardwright.search.exact.find_exact import find_exact
from shardwright.search.exact.stage_of_block_range import chain_blocks
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import Stops


def plan_exact(
    request: Request,
    *,
    time_limit_s: float = float("inf"),
    stops: Stops | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[None]:
    """Search the best of all plans of up to `request.lanes` lanes, on a few devices of any kind.

    The search chooses the devices and samples of every lane, its cut, split trees, microbatches and
    order together.

    Raises:
        UsageError: the problem is too large, or pins an axis.
        StrategyError: the model's blocks are not a chain, or share weights.
        InfeasibleError: nothing fits.
    """
    require_unranked(request, "the exact search")
    if request.pins or request.excludes:
        raise UsageError(
            "the exact space has no axes to pin or to exclude",
            hint="drop --pin and --exclude, or search a space of grids",
        )
    request = with_defaults(request)
    problem = problem_of(request)
    require_unequal_stages(problem, "the exact search")
    roomy = replace(problem, cluster=reserve_memory_share(problem.cluster, share=request.headroom))
    blocks = chain_blocks(roomy)
    space = exact_space(roomy, blocks=blocks, lanes=request.lanes)
    require_few_members(roomy, space, blocks=blocks)
    answer = find_exact(roomy, space, time_limit_s=time_limit_s, stops=stops, progress=progress)
    return with_simulation(request, problem, answer, name=EXACT)
