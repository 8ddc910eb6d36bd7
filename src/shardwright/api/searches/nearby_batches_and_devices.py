"""Suggest batches and numbers of devices near a request's that use the devices better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import gcd

from shardwright.api.request_to_problem import capacity_of, facts_of, space_of
from shardwright.errors import InfeasibleError
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.default_runtime_and_recompute_options import LADDER
from shardwright.search.search_answer import Answer, Nearby
from shardwright.search.search_request import Request

MIN_GAIN = 0.05
"""Least gain of a suggestion, as a share of the tokens a second and device."""
MAX_DISTANCE = 0.125
"""Largest distance from the request's number, as a share of it, unless a larger share of
the devices is idle."""
MIN_COMMON_DIVISOR = 0.25
"""Least greatest common divisor of batch and devices, as a share of the smaller, at which none are
searched."""
MAX_BOUNDED = 8
"""Most problems of each kind that are bounded, and of these that are searched (MAX_SEARCHED)."""
MAX_SEARCHED = 2


def suggest_nearby(
    request: Request, problem: Problem, answer: Answer, *, progress: Progress | None = None
) -> tuple[Nearby, ...]:
    """The nearest worthwhile batch and larger cluster, by rate of a device; none, one or both.

    No device is idle.

    Each gains at least MIN_GAIN, and half of the largest gain that a bound allows. They are
    searched where `answer` leaves devices idle, or batch and devices share no large divisor; in the
    standard space, which is enough for a suggestion.
    """
    # Under the options of the answer, so that what is nearby gains by its own.
    pins = {
        **dict(request.pins),
        **{name: (value,) for name, value in answer.grid.options if name not in LADDER},
    }
    request = replace(request, space="standard", pins=tuple(pins.items()))
    batch, devices = problem.job.global_batch, problem.cluster.num_devices
    if not answer.prediction.idle_devices and gcd(batch, devices) >= MIN_COMMON_DIVISOR * min(
        batch, devices
    ):
        return ()
    rate = problem.job.global_batch / answer.prediction.step_time_s / problem.cluster.num_devices
    idle = answer.prediction.idle_devices / problem.cluster.num_devices
    suggestions = (
        _first_worthwhile(request, candidates, rate, progress)
        for candidates in (
            _nearest_batches(problem, max(MAX_DISTANCE, idle)),
            _larger_clusters(problem, max(MAX_DISTANCE, idle)),
        )
    )
    return tuple(suggestion for suggestion in suggestions if suggestion is not None)


def _first_worthwhile(
    request: Request, problems: Iterator[Problem], rate: float, progress: Progress | None
) -> Nearby | None:
    """The first problem whose gain is at least half the largest that bounds allow, or None."""
    possible_gains = [
        (candidate, _rate_bound(request, candidate) / rate - 1)
        for candidate in islice(problems, MAX_BOUNDED)
    ]
    min_gain = max(MIN_GAIN, max((gain for _, gain in possible_gains), default=0.0) / 2)
    for candidate in islice(
        (candidate for candidate, gain in possible_gains if gain >= min_gain), MAX_SEARCHED
    ):
        facts = facts_of(candidate)
        space, capacity = (
            space_of(replace(request, use_all=True), candidate, facts),
            capacity_of(request, candidate),
        )
        try:
            best = find(
                candidate,
                space,
                facts,
                capacity=capacity,
                top=1,
                memory=request.search_memory,
                hints=False,
                progress=progress,
            )
        except InfeasibleError:
            continue
        gain = candidate.job.global_batch / best.prediction.step_time_s / facts.devices / rate - 1
        if gain >= min_gain:
            return Nearby(
                devices=facts.devices,
                global_batch=facts.global_batch,
                step_time_s=best.prediction.step_time_s,
                gain=gain,
            )
    return None


def _rate_bound(request: Request, problem: Problem) -> float:
    """Upper bound on samples a second and device of any plan on all devices; 0 if none fits."""
    facts = facts_of(problem)
    space = space_of(replace(request, use_all=True), problem, facts)
    bounded = bound_space(problem, space, facts, capacity=capacity_of(request, problem))
    return facts.global_batch / float(bounded.seconds.min(initial=float("inf"))) / facts.devices


def _nearest_batches(problem: Problem, max_distance: float) -> Iterator[Problem]:
    """Yield the problem with other batches, nearest first: multiples of device-count divisors."""
    batch, devices = problem.job.global_batch, problem.cluster.num_devices
    steps = [
        d
        for d in range(2, min(batch, devices) + 1)
        if devices % d == 0 and d >= batch * max_distance / 4
    ]
    multiples = {step * count for step in steps for count in (batch // step, batch // step + 1)} - {
        0,
        batch,
    }
    for number in sorted(
        (n for n in multiples if abs(n - batch) <= max_distance * batch),
        key=lambda n: (abs(n - batch), n),
    ):
        yield replace(problem, job=replace(problem.job, global_batch=number))


def _larger_clusters(problem: Problem, max_distance: float) -> Iterator[Problem]:
    """Yield the problem on more nodes, fewest first: multiples of divisors of the batch."""
    batch, cluster = problem.job.global_batch, problem.cluster
    if len(cluster.groups) > 1:
        return
    nodes, node_devices = cluster.groups[0].count, cluster.node.num_devices
    steps = [d for d in range(2, min(batch, nodes) + 1) if batch % d == 0]
    larger_counts = {
        -(-nodes // step) * step for step in steps if step >= nodes * max_distance / 4
    } - {nodes}
    for number in sorted(
        n
        for n in larger_counts
        if n <= nodes * (1 + max_distance) and n * node_devices > cluster.num_devices
    ):
        yield replace(
            problem, cluster=replace(cluster, groups=(replace(cluster.groups[0], count=number),))
        )
