"""Certificates: the fate of every member of a space, and the proven lower bound of all."""

from __future__ import annotations

from shardwright.lazy_dataclass import dataclass
from shardwright.search.mixed_certificate import MixedPart
from shardwright.search.scenario_certificate import ScenariosPart
from shardwright.search.search_limit import Stops


@dataclass(slots=True)
class Counts:
    """Numbers of members by fate, while a search runs; see `Certificate`."""

    enumerated: int = 0
    illegal: int = 0
    duplicates: int = 0
    infeasible: int = 0
    bounded_b0: int = 0
    bounded_b1: int = 0
    simulated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPart:
    """Part of the certificate of a joint search.

    Args:
        pipelines: choices that all ranks of a member share.
        complete: no time limit cut in.
        tolerance: gap that was good enough.
        grids: members of the grid space, which is part of the joint one and searched on its own
            first.
        grid_lower_s: no grid is faster; None where none fits.
        grid_stopped_at: as `Certificate.stopped_at`, of that search.
        fixed: (axis, value) of axes and options that grids are searched over and pipelines have one
            value of.
    """

    pipelines: int
    complete: bool
    tolerance: float
    grids: int
    grid_lower_s: float | None
    grid_stopped_at: int
    fixed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Every member of the space, accounted for: enumerated = illegal + duplicates + infeasible +
    bounded_b0 + bounded_b1 + simulated.

    Args:
        space: the space as text (axes and values).
        digest: of the space and the problem.
        enumerated: combinations of axis values.
        illegal: break a rule.
        duplicates: lower to the Program of an earlier member; the others are distinct legal
            strategies (`strategies`).
        infeasible: a lower bound of their peak memory exceeds the capacity, or the simulated peak
            does.
        bounded_b0, bounded_b1: a lower bound of their time is not below the best, their own or that
            of all members of their mesh.
        simulated: simulated in full.
        best_s: seconds of the answer.
        lower_bound_s: no member is faster.
        gap: (best - lower bound) / best.
        universal_gap: the same against total work over total achievable rate, valid for any plan
            whatever.
        stopped_at: at which of the search's looks at the clock the time limit cut in (0 = never): a
            search that stops there again has the same answer.
        joint: of a joint space, where members with any order are counted once, bounded_b1 are those
            whose longest path is not below the best, and none is illegal or a duplicate.
        mixed: of a mixed cluster's, where those that were looked at are counted and none is bounded
            but by the path of its own cut.
        scenarios: of a search over several states of the cluster: seconds are means of the slow
            tail then, and members those of all states' searches together.
    """

    space: str
    digest: str
    enumerated: int
    illegal: int
    duplicates: int
    infeasible: int
    bounded_b0: int
    bounded_b1: int
    simulated: int
    best_s: float
    lower_bound_s: float
    gap: float
    optimal: bool
    universal_gap: float
    infeasible_by_reason: tuple[tuple[str, int], ...] = ()
    stopped_at: int = 0
    joint: JointPart | None = None
    mixed: MixedPart | None = None
    scenarios: ScenariosPart | None = None

    @property
    def strategies(self) -> int:
        """Distinct legal strategies of the space."""
        return self.enumerated - self.illegal - self.duplicates


def stops_of(certificate: Certificate) -> Stops:
    """The looks at the clock at which the parts of the certified search were stopped."""
    mixed, joint = certificate.mixed, certificate.joint
    grids = tuple([pool.stopped_at for pool in mixed.alone]) if mixed is not None else ()
    return Stops(
        search=certificate.stopped_at,
        grids=grids if joint is None else (joint.grid_stopped_at,),
        composed=mixed.composed_stopped_at if mixed is not None else 0,
    )


def claim(*, optimal: bool, lower_bound_s: float) -> str:
    """The claim of a certificate in a sentence."""
    if optimal:
        return "Optimal: no other strategy of the space is faster."
    return f"Not proven optimal: no strategy of the space takes less than {lower_bound_s:.4g} s."


def assert_sound(*, best_s: float, lower_bound_s: float, universal_gap: float) -> None:
    """Assert that no lower bound is above the answer, which every search does with its result."""
    assert 0 <= lower_bound_s <= best_s < float("inf"), (
        f"{lower_bound_s} s is called a bound of {best_s} s"
    )
    assert universal_gap >= 0, (
        f"a bound of any plan whatever lies {-universal_gap:.3g} above the best"
    )
