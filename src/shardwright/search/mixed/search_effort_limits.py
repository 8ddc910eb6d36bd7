"""Limits on the work of a search over mixed clusters.

They decide how near the plan and the bound come to the best ones, but never the validity of a
bound.
"""

from __future__ import annotations

from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits on the work of a search, each named by what it limits.

    A limit below is a step time, in seconds, that plans are composed for or shown to miss. A ratio
    or share of a limit has no unit. Numbers of tasks at once do not depend on the workers, so that
    the answer does not either.

    Args:
        pool_grid_time_share: share of the time limit for the grids of all pools together.
        composition_time_share: share of the time that they leave for finding plans; the proof has
            the rest.
        pool_grid_clock_checks: checks of the clock in the search of one pool's grids, of some 5 ms.
        pool_grid_ranges: ranges of numbers of nodes whose grids are searched for cost, all pools
            together.
        fewer_node_clusters: clusters with fewer nodes that are searched; none where there are more.
        shapes_refined_at_once: shapes made exact before the best of them join the linear program.
        columns_joined_at_once: shapes that join a linear program at a time.
        shapes_refined_near_prices: shapes nearest to their price made exact for compositions.
        limit_rise: share by which the limit of a subspace rises from one composition to the next.
        largest_limit_rise: the same where prices close the subspace again and again.
        latest_limit_ratio: limits above this ratio of the best step time are not tried.
        limits_per_subspace: limits at which plans of a subspace are composed.
        first_limit_precision: share to which a subspace's first open limit is found.
        limits_at_once: limits of a set of pipelines under way at once.
        early_limit_rises: shares by which limits of undivided subspaces lie above the first open
            one.
        early_simulations: plans of each kind of lanes simulated after each of these.
        rounds: (limits of a set of pipelines, simulations) of each later round.
        proof_rounds: numbers of the rounds after which the bound is proved.
        sharding_share: divisor on limits and simulations of plans with a lane that shards, where
            there are plans without one.
        shapes_with_all_limits: shapes up to which a round tries all its limits; with twice as many
            it tries half of them.
        compositions_per_subspace: compositions of pairs of shapes, of a subspace and a limit.
        lanes_on_two_pools: shapes of a composition on two pools; one more for each further pool.
        paired_shapes: shapes of which every pair is tried.
        program_shapes: shapes that an integer program chooses from.
        program_nodes: nodes of the branch and bound tree of an integer program.
        spared_microbatches: microbatches less than its most that a shape does, when the batch is
            divided exactly.
        equal_shapes: shapes tried with each number of replicas that share the batch equally.
        lane_limit_ratio: times a limit by which a lane may end under the terms of its own plan.
        simulations_at_once: plans under simulation at once.
        improved_plans: best plans that are improved by small changes.
        changes_per_plan: small changes tried of each.
        changes_at_once: small changes under simulation at once.
        moved_microbatches: microbatches that one lane gives another in a change.
        bound_tests: subspaces tested at a limit, before the limit is lowered, at most.
        least_bound_tests: the same at least.
        bound_test_shapes: shapes of all these tests together, between the two.
        first_gaps: gaps that are shown before the tolerance; each takes a fraction of the work of
            the next.
        first_lowered_steps: steps of the grid of limits by which a limit is lowered first.
        tests_at_once: subspaces under test at once.
        cost_limit_ratio: times a limit that the next is, from the fastest to the cheapest plan.
        near_cost_limit_ratio: the same near the best plan.
        near_cost_limits: limits on each side of the best plan.
        front_rounds: rounds for time that a front of time and cost begins with.
        cost_subspaces: subspaces of a limit for which low-cost plans are composed.
        cost_simulations: low-cost plans simulated for a limit.
        least_interval_ratio: times its begin that an interval of step times ends, at least.
        largest_interval_ratio: the same at most.
        cost_bound_tests: linear programs of the cost bound for one limit.
        budget_limit_precision: share to which the earliest limit within a budget is found.
    """

    pool_grid_time_share: float = 0.5
    composition_time_share: float = 0.6
    pool_grid_clock_checks: int = 2_000
    pool_grid_ranges: int = 120
    fewer_node_clusters: int = 64
    shapes_refined_at_once: int = 1_024
    columns_joined_at_once: int = 96
    shapes_refined_near_prices: int = 800
    limit_rise: float = 0.01
    largest_limit_rise: float = 0.04
    latest_limit_ratio: float = 0.995
    limits_per_subspace: int = 3
    first_limit_precision: float = 0.01
    limits_at_once: int = 4
    early_limit_rises: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
    early_simulations: int = 4
    rounds: tuple[tuple[int, int], ...] = ((5, 12), (16, 24), (24, 48), (48, 96))
    proof_rounds: tuple[int, ...] = (0, 3)
    sharding_share: int = 4
    shapes_with_all_limits: int = 150_000
    compositions_per_subspace: int = 60
    lanes_on_two_pools: int = 2
    paired_shapes: int = 400
    program_shapes: int = 160
    program_nodes: int = 100
    spared_microbatches: int = 6
    equal_shapes: int = 400
    lane_limit_ratio: float = 1.25
    simulations_at_once: int = 8
    improved_plans: int = 2
    changes_per_plan: int = 16
    changes_at_once: int = 4
    moved_microbatches: int = 4
    bound_tests: int = 200
    least_bound_tests: int = 32
    bound_test_shapes: int = 20_000_000
    first_gaps: tuple[float, ...] = (0.2, 0.1)
    first_lowered_steps: int = 16
    tests_at_once: int = 16
    cost_limit_ratio: float = 1.15
    near_cost_limit_ratio: float = 1.03
    near_cost_limits: int = 4
    front_rounds: int = 2
    cost_subspaces: int = 2
    cost_simulations: int = 3
    least_interval_ratio: float = 1.02
    largest_interval_ratio: float = 4.0
    cost_bound_tests: int = 24
    budget_limit_precision: float = 0.002


USUAL: Final = Effort()
"""The limits that the command line uses."""
