"""The joint search: cut, splits, memory choices, microbatches and order together, best first over
pipelines, certified.
"""

from __future__ import annotations

import time
from dataclasses import field
from math import comb

from shardwright.errors import InfeasibleError
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem, under
from shardwright.runtime.options import ordered
from shardwright.search.answer import Answer
from shardwright.search.certificate import assert_sound, claim
from shardwright.search.engine.protocol import Engine
from shardwright.search.engine.serial import Serial
from shardwright.search.grid.by_mesh import fastest_first
from shardwright.search.grid.find import find, problem_text
from shardwright.search.grid.prepare import facts_of
from shardwright.search.grid.space import Space, parts_of
from shardwright.search.joint.any_order import CHUNKS, any_order_pipelines, search_orders
from shardwright.search.joint.layer_counts import layer_counts
from shardwright.search.joint.named_order import search_named
from shardwright.search.joint.pipeline_shapes import (
    JointSpace,
    PipelineShape,
    joint_space,
    shaped_space,
)
from shardwright.search.joint.score import Scored
from shardwright.search.joint.solve import load_label_kernels
from shardwright.search.joint.state import OPEN_LIMIT, Footing, Progress, Search
from shardwright.search.limit import Limit, limit_of, out_of_time
from shardwright.search.request import SEARCH_MEMORY
from shardwright.search.simulation import Simulation
from shardwright.search.universal import universal_bound
from shardwright.strategy.grid.rules import GridFacts

NAMED_ORDERS, FOUND_ORDERS = "named", "found"


@dataclass(frozen=True, slots=True, kw_only=True)
class JointCertificate:
    """Every member of the joint space, accounted for: enumerated = infeasible + bounded + scored +
    simulated, of members (plans).

    Args:
        pipelines: choices that all ranks share; a member of one with any order has its best one,
            orders are not counted.
        infeasible: no option of a pipeline's ranks fits in memory, or the exact peak does not.
        bounded: a lower bound of their time is not below the best (or they are in a pipeline whose
            bound is the certificate's).
        scored: their longest path is not below the best.
        simulated: in full.
        grids: members of the grid space, which is part of this one and certified on its own
            (`grid_lower_s`).
        best_s, lower_bound_s, gap: as in `search.certificate`. optimal: nothing in the space is
            faster.
        complete: no time limit cut in.
        tolerance: as it was asked for.
        stopped_at: as in `search.certificate`.
        fixed: (axis, value) of axes and options that grids are searched over and pipelines have one
            value of.
    """

    space: str
    digest: str
    pipelines: int
    enumerated: int
    infeasible: int
    bounded: int
    scored: int
    simulated: int
    grids: int
    grid_lower_s: float
    best_s: float
    lower_bound_s: float
    gap: float
    complete: bool
    universal_gap: float
    tolerance: float = 0.0
    stopped_at: int = 0
    fixed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAnswer:
    """Args: best: None where a grid stays the best plan. grid: the best of the grid space, None if
    none of it fits. simulation: of the best plan, as a plan file holds it. waited: the limit cut in
    before there was a plan (`search.limit.Limit`).
    """

    best: Scored | None
    grid: Answer | None
    step_time_s: float
    certificate: JointCertificate
    search_time_s: float
    simulation: Simulation | None = None
    waited: bool = False

    def __str__(self) -> str:
        """What was asked, what was found, and whether it is proven best, in a few lines."""
        c = self.certificate
        proof = claim(optimal=c.gap == 0, lower_bound_s=c.lower_bound_s)
        return f"{self.simulation or ''}\n{proof}".strip()


def find_joint(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: int,
    orders: str = NAMED_ORDERS,
    effort: float = 1.0,
    tolerance: float = 0.0,
    time_limit_s: float = float("inf"),
    stop_at: tuple[int, int] | None = None,
    memory: int = SEARCH_MEMORY,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> JointAnswer:
    """The best plan of the joint space over `space`, certified; the grid space is searched first
    and is part of it.

    Args:
        capacity: bytes of a device.
        orders: "named" for 1F1B and interleaved 1F1B, "found" for any static order of one chunk a
            rank too.
        effort: of the order searches (`search.orders.find.find_order`).
        tolerance: gap that is good enough; 0 = look on until nothing that the bounds leave is
            unseen.
        time_limit_s: past it the best so far stands with its proven gap.
        stop_at: of the search of the grid space, and of this one; see `search.limit.limit_of`.
        memory: bytes for the members of the grid space.
        engine: where pipelines are looked at, one after another without; the answer is the same.

    Raises:
        OutOfTimeError: the limit cut in, and there is no plan yet. InfeasibleError: nothing fits.
    """
    load_label_kernels()
    engine = engine or Serial()
    begun, (grid_stop, stop) = time.monotonic(), stop_at or (None, None)
    limit = limit_of(time_limit_s, stop_at=stop)
    grid, refusal = _best_grid(
        problem, space, facts, capacity, time_limit_s / 2, grid_stop, memory, progress
    )
    waited = grid is not None and grid.waited and not limit.left_s
    # Devices that the best grid leaves idle are idle in every pipeline.
    devices = grid.grid.devices if grid else space.devices
    joint = joint_space(space, devices=devices, any_order=orders == FOUND_ORDERS)
    found = _Found(
        best_s=grid.certificate.best_s if grid else OPEN_LIMIT,
        complete=grid is None or grid.certificate.optimal,
    )
    parts: list[Space] = list(parts_of(problem, joint.base)) if joint.base.of("pp") else []
    if grid is not None:
        parts = fastest_first(problem, parts, grid.grid)
    for part in parts:
        own = under(problem, ordered((*part.chosen, *part.modules[0])))
        with_stages, first = joint.of(part, zero_stages=own.runtime.zero_stages), parts[0]
        shaped = shaped_space(own, with_stages, facts, behind=None if part is first else first)
        if shaped is not None:
            kernel_facts = facts_of(own, devices=devices, capacity=capacity)
            footing = Footing(
                problem=own,
                shaped=shaped,
                facts=kernel_facts,
                capacity=capacity,
                tolerance=tolerance,
                effort=effort,
            )
            _search_part(
                footing,
                joint,
                facts,
                found,
                limit,
                engine,
                progress,
                share=1.0 if part is parts[0] else LATER,
            )
    if found.best is None and grid is None:
        assert refusal is not None
        raise out_of_time() if limit.stopped_at else refusal
    step, sizes, best = found.best_s, found.sizes, found.best
    grid_lower = grid.certificate.lower_bound_s if grid else float("inf")
    lower = min(found.lower_s, grid_lower, step)
    done = found.infeasible, found.scored, found.simulated
    universal = 1.0 - universal_bound(problem, space.devices) / step
    assert_sound(best_s=step, lower_bound_s=lower, universal_gap=universal)
    certificate = JointCertificate(
        space=joint.text(),
        digest=joint.digest(problem_text(problem)),
        pipelines=len(sizes),
        enumerated=sum(sizes),
        infeasible=done[0],
        bounded=sum(sizes) - sum(done),
        scored=done[1],
        simulated=done[2],
        grids=grid.certificate.strategies if grid else 0,
        grid_lower_s=grid_lower,
        best_s=step,
        lower_bound_s=lower,
        gap=max(step - lower, 0.0) / step,
        complete=found.complete,
        tolerance=tolerance,
        stopped_at=limit.stopped_at,
        universal_gap=universal,
        fixed=joint.fixed,
    )
    spent = time.monotonic() - begun
    return JointAnswer(
        best=best,
        grid=grid,
        step_time_s=step,
        certificate=certificate,
        search_time_s=spent,
        waited=waited,
    )


LATER = 0.25
"""Share of the order searches that each part of the options has behind the first, under whose
options the best grid is the fastest."""


@dataclass(slots=True)
class _Found:
    """What was found in the pipelines of all parts of the options so far.

    Args:
        sizes: members of each pipeline.
        lower_s: no member of a pipeline ends before.
    """

    best_s: float
    complete: bool
    best: Scored | None = None
    lower_s: float = float("inf")
    infeasible: int = 0
    scored: int = 0
    simulated: int = 0
    sizes: list[int] = field(default_factory=list)


def _search_part(
    footing: Footing,
    joint: JointSpace,
    facts: GridFacts,
    found: _Found,
    limit: Limit,
    engine: Engine,
    progress: Progress | None,
    *,
    share: float,
) -> None:
    """Search the pipelines under one value of each option against what was found before, and add to
    it.

    Args:
        share: of the order searches.
    """
    shaped, problem = footing.shaped, footing.problem
    chunks = [count for count in CHUNKS if count in joint.grids.of("vpp")]
    more = (
        any_order_pipelines(shaped, facts.layers, chunks_per_rank=chunks) if joint.any_order else ()
    )
    found.sizes += [_num_members(f, facts.layers) for f in (*shaped.pipelines, *more)]
    if limit.stopped_at and share < 1.0:
        found.complete, found.lower_s = (
            False,
            min(found.lower_s, universal_bound(problem, joint.base.devices)),
        )
        return
    search = Search(footing=footing, best_s=found.best_s, limit=limit)
    found.complete &= search_named(search, engine, progress)
    if more:
        found.complete &= search_orders(search, more, engine, progress, share=share)
    found.lower_s = min(found.lower_s, search.lower_s)
    found.infeasible += search.infeasible
    found.scored += search.scored
    found.simulated += search.simulated
    if search.best is not None:
        found.best, found.best_s = search.best, search.best_s


def _best_grid(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    capacity: int,
    limit: float,
    stop_at: int | None,
    memory: int,
    progress: Progress | None,
) -> tuple[Answer | None, InfeasibleError | None]:
    try:
        found = find(
            problem,
            space,
            facts,
            capacity=capacity,
            top=1,
            time_limit_s=limit,
            stop_at=stop_at,
            memory=memory,
            progress=progress,
        )
        return found, None
    except InfeasibleError as error:
        return None, error


def _num_members(pipeline: PipelineShape, layers: int) -> int:
    """Members of a pipeline: cuts times splits of each rank times whether what is not recomputed in
    full is so selectively.

    How many layers a rank recomputes in full is not counted: the fewest that fit stand for the
    others, which are slower.
    """
    if pipeline.chunks == 1:
        return comb(layers - 1, pipeline.ranks - 1) * int(
            (2 * len(pipeline.outers)) ** pipeline.ranks
        )
    return len(layer_counts(layers, pipeline.ranks, pipeline.chunks))
