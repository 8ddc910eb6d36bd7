"""The frames whose order is found: bounds over all static orders by labels, then orders for the cuts that the labels like."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from shardwright.cost.bound_arrays import Facts
from shardwright.search.joint.arrays import is_alike, pipeline_of, splits_of
from shardwright.search.joint.chain import chain_of
from shardwright.search.joint.frames import Frame, Framed
from shardwright.search.joint.member import JointPlan, plan_of_cut
from shardwright.search.joint.ordered import Ordered, ordered
from shardwright.search.joint.quick import frame_bounds
from shardwright.search.joint.score import GENERAL, path_score
from shardwright.search.joint.solve import solve
from shardwright.search.joint.state import Progress, Search

SKETCHED = 32
"""Cuts that an order is sketched for, the least bounds first."""
SKETCH = 0.05
"""Share of an order search's changes that a sketch takes."""
REFINED = 4
"""Cuts that an order is searched for in full."""
FINISHED = 3
"""Found orders that are simulated."""
CLOSE = 1.01
"""Largest ratio of an estimate to the best known time that is worth a full search."""


def any_order_frames(framed: Framed) -> tuple[Frame, ...]:
    """The frames with one chunk a rank, their order open."""
    return tuple(replace(frame, any_order=True) for frame in framed.frames if frame.chunks == 1)


def search_orders(search: Search, frames: tuple[Frame, ...], facts: Facts, progress: Progress | None) -> bool:
    """Bound every frame, and try the cuts with the least bounds. Whether the deadline did not cut in.

    Bounds go into `search.lower` behind those of the frames with named orders.
    """
    problem, framed, chain = search.problem, search.framed, chain_of(search.problem.model)
    jitter, alike, first = facts.jitter * GENERAL * (1 - 1e-9), is_alike(chain), len(framed.frames)
    quick = frame_bounds(problem, replace(framed, frames=frames), chain, facts) * jitter
    order = np.argsort(quick, kind="stable")
    waiting: list[tuple[float, int, JointPlan]] = []
    for turn, place in enumerate(order.tolist()):
        if quick[place] >= search.enough_s or (turn % 16 == 15 and time.monotonic() > search.deadline):
            search.lower[first + place] = float(quick[place])
            break
        frame = frames[place]
        splits, pipe = splits_of(problem, framed, chain, frame, facts), pipeline_of(problem, frame, facts)
        norm = float(min(framed.costs.norm[framed.prepared.mesh_row[list(frame.outers)]]))
        solved = solve(splits, pipe, limit=search.enough_s / jitter - norm, alike=alike)
        search.lower[first + place] = min((solved.lower_s + norm) * jitter, search.enough_s)
        waiting += [(search.lower[first + place], place, plan_of_cut(framed, frame, cut)) for cut in solved.cuts]
        if progress is not None and turn % 64 == 0:
            progress("bound cuts of any order", turn, len(order))
    if search.best is not None and len(search.best.plan.chunks) == search.best.plan.ranks:
        waiting.append((0.0, -1, search.best.plan))
    waiting.sort(key=lambda entry: entry[:2])
    _refine(search, _sketched(search, [plan for _, _, plan in waiting], progress), progress)
    return time.monotonic() <= search.deadline


def _sketched(search: Search, plans: list[JointPlan], progress: Progress | None) -> list[Ordered]:
    """Sketches of the plans whose bound is below the best, by what they are estimated to take."""
    found: list[Ordered] = []
    for turn, plan in enumerate(plans[:SKETCHED]):
        if time.monotonic() > search.deadline:
            break
        one = ordered(search.problem, search.framed, plan, capacity=search.capacity, effort=SKETCH)
        if one is not None and one.estimate_s < search.best_s * CLOSE:
            found.append(one)
        if progress is not None:
            progress("sketch orders", turn, min(len(plans), SKETCHED))
    return sorted(found, key=lambda one: one.estimate_s)


def _refine(search: Search, sketches: list[Ordered], progress: Progress | None) -> None:
    """Full searches for the best sketches; the best of those are simulated."""
    found: list[Ordered] = []
    for turn, sketch in enumerate(sketches[:REFINED]):
        if time.monotonic() > search.deadline:
            found.append(sketch)
            break
        one = ordered(search.problem, search.framed, replace(sketch.plan, table=None), capacity=search.capacity, effort=1.0)
        found.append(sketch if one is None or one.estimate_s > sketch.estimate_s else one)
        if progress is not None:
            progress("search orders", turn, min(len(sketches), REFINED))
    for one in sorted(found, key=lambda one: one.estimate_s)[:FINISHED]:
        scored = path_score(search.problem, search.framed, one.plan)
        if scored.seconds >= search.best_s:
            search.scored += 1
        else:
            search.simulate(scored)
