"""Batches and numbers of devices near a request's that suit each other better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import gcd

from shardwright.api.problems import capacity_of, facts_of, space_of
from shardwright.errors import InfeasibleError
from shardwright.program.problem import Problem
from shardwright.progress import Progress
from shardwright.search.answer import Answer, Nearby
from shardwright.search.grid.bounded import bound_space
from shardwright.search.grid.find import find
from shardwright.search.grid.modules import LADDER
from shardwright.search.request import Request

WORTH = 0.05
"""Least gain that is told."""
NEAR = 0.125
"""Farthest, as a share of what was asked, where no larger share of the devices is idle."""
SUITED = 0.25
"""Least common divisor of a batch and the devices that suit each other, as a share of the smaller.
"""
LOOKED = 8
"""Problems of each kind that are bounded; and SEARCHED of those whose bound promises enough are
searched."""
SEARCHED = 2


def nearby(
    request: Request, problem: Problem, answer: Answer, *, progress: Progress | None = None
) -> tuple[Nearby, ...]:
    """The nearest batch, and the nearest larger number of devices, with which no device is idle and
    each gives more tokens a second than in `answer`, by WORTH and half of what the best of them
    promises at least. Looked for where `answer` leaves devices idle, or both share no large
    divisor; in the standard space, as a suggestion needs no more.
    """
    # Under the options of the answer, so that what is nearby gains by its own.
    pins = {
        **dict(request.pins),
        **{name: (value,) for name, value in answer.grid.options if name not in LADDER},
    }
    request = replace(request, space="standard", pins=tuple(pins.items()))
    batch, devices = problem.job.global_batch, problem.cluster.num_devices
    if not answer.prediction.idle_devices and gcd(batch, devices) >= SUITED * min(batch, devices):
        return ()
    rate = problem.job.global_batch / answer.prediction.step_time_s / problem.cluster.num_devices
    idle = answer.prediction.idle_devices / problem.cluster.num_devices
    found = (
        _first(request, some, rate, progress)
        for some in (_batches(problem, max(NEAR, idle)), _larger(problem, max(NEAR, idle)))
    )
    return tuple(one for one in found if one is not None)


def _first(
    request: Request, problems: Iterator[Problem], rate: float, progress: Progress | None
) -> Nearby | None:
    """The first problem that gains at least half of the largest gain that any promises."""
    promises = [(one, _most(request, one) / rate - 1) for one in islice(problems, LOOKED)]
    worth = max(WORTH, max((gain for _, gain in promises), default=0.0) / 2)
    for one in islice((one for one, gain in promises if gain >= worth), SEARCHED):
        facts = facts_of(one)
        space, capacity = (
            space_of(replace(request, use_all=True), one, facts),
            capacity_of(request, one),
        )
        try:
            best = find(
                one,
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
        gain = one.job.global_batch / best.prediction.step_time_s / facts.devices / rate - 1
        if gain >= worth:
            return Nearby(
                devices=facts.devices,
                global_batch=facts.global_batch,
                step_time_s=best.prediction.step_time_s,
                gain=gain,
            )
    return None


def _most(request: Request, problem: Problem) -> float:
    """Upper bound of the samples a second and device of all plans on all devices; 0 where none
    is legal and fits.
    """
    facts = facts_of(problem)
    space = space_of(replace(request, use_all=True), problem, facts)
    bounded = bound_space(problem, space, facts, capacity=capacity_of(request, problem))
    return facts.global_batch / float(bounded.seconds.min(initial=float("inf"))) / facts.devices


def _batches(problem: Problem, near: float) -> Iterator[Problem]:
    """The nearest batches that share a large divisor with the number of devices, in order of their
    distance.
    """
    batch, devices = problem.job.global_batch, problem.cluster.num_devices
    steps = [
        d for d in range(2, min(batch, devices) + 1) if devices % d == 0 and d >= batch * near / 4
    ]
    multiples = {step * count for step in steps for count in (batch // step, batch // step + 1)} - {
        0,
        batch,
    }
    for number in sorted(
        (n for n in multiples if abs(n - batch) <= near * batch), key=lambda n: (abs(n - batch), n)
    ):
        yield replace(problem, job=replace(problem.job, global_batch=number))


def _larger(problem: Problem, near: float) -> Iterator[Problem]:
    """The same cluster with more nodes, whose number shares a large divisor with the batch, the
    fewest first.
    """
    batch, cluster = problem.job.global_batch, problem.cluster
    if len(cluster.groups) > 1:
        return
    nodes, each = cluster.groups[0].count, cluster.node.num_devices
    steps = [d for d in range(2, min(batch, nodes) + 1) if batch % d == 0]
    more = {-(-nodes // step) * step for step in steps if step >= nodes * near / 4} - {nodes}
    for number in sorted(
        n for n in more if n <= nodes * (1 + near) and n * each > cluster.num_devices
    ):
        yield replace(
            problem, cluster=replace(cluster, groups=(replace(cluster.groups[0], count=number),))
        )
