"""The error of a space without a feasible member: the missing memory and the changes that fit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from shardwright.errors import InfeasibleError, StrategyError
from shardwright.hardware.scale_network_limit_devices_reserve_memory import (
    limit_devices,
    smallest_memory_bytes,
)
from shardwright.program.strategy_rule_violations import facts_of
from shardwright.program.training_problem import Problem, under
from shardwright.progress_callback import Progress
from shardwright.search.grid.bounds.members_with_time_and_memory import (
    ExpandedMembers,
    least_offloaded,
    smallest,
)
from shardwright.search.grid.changes_of_infeasible_request import (
    ChangedRequest,
    InfeasibleRequest,
    changed_to,
    fits,
    least_memory_space,
    series_of,
    unpinned_changes,
)
from shardwright.search.grid.members.enumerate_members import enumerate_members
from shardwright.search.grid.members.grid_search_space import Space, supported_option_parts
from shardwright.simulator.prediction import host_lack
from shardwright.simulator.simulate_plan import footprint_of_grid
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import format_bytes

NEAR: Final = 24
"""Smaller device counts that are tried below the requested one."""
MOST_UNPINNED: Final = 2
"""Most pins that the hint names if no member is legal."""
MOST_RAW: Final = 4000
LONGEST_S: Final = 30.0
"""Seconds after which no further change is tried."""


def nothing_fits(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    expanded: tuple[ExpandedMembers, ...],
    *,
    capacity: int,
    hints: bool = True,
    progress: Progress | None = None,
) -> InfeasibleError:
    """Build the error that no member fits: smallest plan, missing bytes, changes that would fit.

    Args:
        expanded: the expanded parts of the search.
        capacity: bytes of a device that plans may fill.
        hints: also try changes of `changes_of_infeasible_request.series_of` and list those that
            fit; without them the error costs no search.
    """
    parts = [
        (under(problem, part.space.chosen), part.bounded(problem, facts, capacity=capacity))
        for part in expanded
    ]
    smallest_strategies = [
        smallest_member
        for part_problem, part in parts
        if (smallest_member := smallest(part_problem, part, enough=capacity)) is not None
    ]
    # Where options are searched, changes are tried with the first value of each.
    first = supported_option_parts(problem, space)[0]
    problem = under(problem, first.chosen)
    if not smallest_strategies:
        return _nothing_legal(problem, first, facts, sum(part.enumerated for part in expanded))
    grid, stage = min(smallest_strategies, key=lambda smallest_member: smallest_member[1].reserved)
    if stage.reserved <= capacity:
        # The smallest strategy fits its devices, and would have been found if it fitted its nodes.
        on_host = grid, max(footprint_of_grid(problem, grid)[1], key=lambda pair: pair.lacking)
        offloads = [
            least_offloaded(part_problem, part, most=capacity) for part_problem, part in parts
        ]
        grid, host = min([on_host, *filter(None, offloads)], key=lambda pair: pair[1].lacking)
        message = (
            f"the strategy that lacks least of it ({print_grid(grid)}) does not fit"
            f" {host_lack((host,))}"
        )
        message, needed = (
            f"nothing fits: host memory is too small: {message}",
            f"{format_bytes(host.need)} of host memory a node",
        )
    else:
        need, missing = format_bytes(stage.reserved), format_bytes(stage.reserved - capacity)
        name, largest_bytes = max(stage.items, key=lambda item: item[1])
        message = (
            f"nothing fits: the smallest strategy ({print_grid(grid)}) needs {need} on stage"
            f" {stage.rank} ({format_bytes(largest_bytes)} of it {name}), {missing} more than the"
            f" {format_bytes(capacity)} of a device that plans may fill"
        )
        # A larger device keeps the same share of its memory free.
        memory = smallest_memory_bytes(problem.cluster)
        needed = f"{format_bytes(stage.reserved * memory / max(capacity, 1))} a device"
    roomy = (
        ["--headroom 0"]
        if capacity < stage.reserved <= smallest_memory_bytes(problem.cluster)
        else []
    )
    request = InfeasibleRequest(
        problem=problem, space=first, grid=grid, need=stage.reserved, capacity=capacity
    )
    fitting, complete = _fitting_changes(request, progress) if hints else ([], True)
    hint = f"what would fit: {'; or '.join([*roomy, *fitting, needed])}"
    return InfeasibleError(
        message,
        hint=hint if complete else f"{hint} (not all changes were tried in {LONGEST_S:g} s)",
    )


def _fitting_changes(
    request: InfeasibleRequest, progress: Progress | None
) -> tuple[list[str], bool]:
    """Texts of the first changes of each kind with which a plan fits; True if time sufficed."""
    series, begun, texts = series_of(request), time.monotonic(), list[str]()
    for number, kind in enumerate(series):
        fitting: list[str] = []
        for change in kind.changes:
            if len(fitting) == kind.most or time.monotonic() - begun > LONGEST_S:
                break
            if progress is not None:
                progress(f"look for what would fit: {kind.about}", number, len(series))
            if fits(change, request.capacity):
                fitting.append(change.text)
        texts += kind.hint_texts(fitting)
    return texts, time.monotonic() - begun <= LONGEST_S


def _is_legal(change: ChangedRequest) -> bool:
    """True if the changed request has a legal member among those with the least memory."""
    return (
        enumerate_members(
            change.problem, least_memory_space(change.space), facts_of(change.problem)
        ).num_members
        > 0
    )


def _nothing_legal(
    problem: Problem, space: Space, facts: GridFacts, enumerated: int
) -> InfeasibleError:
    """Build the error of a space without a legal member: nearest broken rule, legal changes."""
    unpinned = (change for _, change in unpinned_changes(problem, space, facts))
    hints = [change.text for change in itertools.islice(filter(_is_legal, unpinned), MOST_UNPINNED)]
    for series in (
        _fewer_devices(problem, space, facts),
        _divisible_batches(problem, space, facts),
    ):
        hints += [change.text for change in itertools.islice(filter(_is_legal, series), 1)]
    return InfeasibleError(
        f"no legal strategy in the space: {_nearest_rule(problem, space, facts, enumerated)}",
        hint=(
            f"what would be legal: {'; or '.join(hints)}"
            if hints
            else "pin less, or choose another number of devices or another batch"
        ),
    )


def _fewer_devices(problem: Problem, space: Space, facts: GridFacts) -> Iterator[ChangedRequest]:
    """Yield changes to fewer devices: the next `NEAR` lower counts, then falling powers of two."""
    devices = problem.cluster.num_devices
    tried: set[int] = {devices}
    next_smaller = range(devices - 1, max(devices - 1 - NEAR, 0), -1)
    powers_of_two = (2**power for power in range(devices.bit_length() - 1, -1, -1))
    for number in (*next_smaller, *powers_of_two):
        cluster = limit_devices(problem.cluster, num_devices=number)
        if cluster.num_devices not in tried:
            tried.add(cluster.num_devices)
            changed = replace(problem, cluster=cluster)
            yield changed_to(f"--max-devices {cluster.num_devices}", problem, space, facts, changed)


def _divisible_batches(
    problem: Problem, space: Space, facts: GridFacts
) -> Iterator[ChangedRequest]:
    """Yield larger global batches: next multiples of devices / d for divisors d up to `NEAR`."""
    batch, devices = problem.job.global_batch, problem.cluster.num_devices
    steps = [devices // part for part in range(min(devices, NEAR), 0, -1) if devices % part == 0]
    larger = sorted({-(-batch // step) * step for step in steps} - {batch})
    for number in larger:
        changed = replace(problem, job=replace(problem.job, global_batch=number))
        yield changed_to(f"--global-batch {number}", problem, space, facts, changed)


def _nearest_rule(problem: Problem, space: Space, facts: GridFacts, enumerated: int) -> str:
    """Message: a rule broken by the raw least-memory member that breaks fewest, or no mesh fits."""
    best: tuple[int, str] | None = None
    for grid in itertools.islice(_raw_grids(least_memory_space(space)), MOST_RAW):
        broken = [f"{v.message} [{v.rule}]" for v in violations(grid, facts=facts)]
        if grid.pp > 1 and grid.zero > problem.runtime.zero_with_pipeline:
            broken.append(
                f"{problem.runtime.name} has no zero{grid.zero} with pp above 1 [runtime.zero]"
            )
        if broken and (best is None or len(broken) < best[0]):
            best = len(broken), broken[0]
    if best is None:
        axes = ", ".join(
            f"{axis} {{{','.join(map(str, space.of(axis)))}}}" for axis in ("tp", "cp", "pp")
        )
        only = f" and dp {{{','.join(map(str, space.dp))}}}" if space.dp else ""
        return f"no tp x cp x pp of {axes}{only} makes {space.devices} devices"
    return f"each of the {enumerated} members breaks a rule; the nearest, {best[1]}"


def _raw_grids(space: Space) -> Iterator[Grid]:
    """Yield all-device grids of all combinations of axes that joint rules read, legal or not."""
    axes = (
        "tp",
        "cp",
        "pp",
        "ep",
        "etp",
        "sp",
        "ulysses",
        "vpp",
        "schedule",
        "zero",
        "recompute_layers",
    )
    for values in itertools.product(*(space.of(axis) for axis in axes)):
        member: dict[str, Any] = dict(zip(axes, values, strict=True))
        dp, rest = divmod(space.devices, member["tp"] * member["cp"] * member["pp"])
        if rest or (space.dp and dp not in space.dp):
            continue
        try:
            yield Grid(
                **member | {"sp": bool(member["sp"])},
                dp=dp,
                microbatch=int(space.of("mbs")[0]),
                recompute=(
                    Recompute.FULL
                    if member["recompute_layers"]
                    else Recompute(str(space.of("recompute")[0]))
                ),
                first=space.first,
                last=space.last,
                order=space.orders[0],
            )
        except StrategyError:
            continue
