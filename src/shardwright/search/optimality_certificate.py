"""Certificates of searches: counts of all members of a space by fate, and a proven lower bound."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.certificate_part_of_cluster_states import ScenariosPart
from shardwright.search.mixed_cluster_certificate import MixedPart
from shardwright.search.search_time_limit import Stops


@dataclass(slots=True)
class Counts:
    """Numbers of members by fate, updated while a search runs; see `Certificate`."""

    enumerated: int = 0
    illegal: int = 0
    duplicates: int = 0
    infeasible: int = 0
    bounded_b0: int = 0
    bounded_b1: int = 0
    simulated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPart:
    """The part of a certificate that a joint search adds.

    Args:
        pipelines: number of choices that all ranks of a member share.
        complete: True if no time limit passed.
        tolerance: gap at which the search stops.
        grids: number of members of the grid space, which is part of the joint space and searched
            first.
        grid_lower_s: seconds that no grid can beat; None if no grid fits.
        grid_stopped_at: `Certificate.stopped_at` of the grid search.
        fixed: (axis, value) of the axes and options that grids vary and pipelines keep fixed.
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
    """Every member of a space, counted by fate, and the proven lower bound of their step times.

    enumerated = illegal + duplicates + infeasible + bounded_b0 + bounded_b1 + simulated.

    Args:
        space: text of the space (axes and values).
        digest: SHA-256 of the space and the problem.
        enumerated: combinations of axis values.
        illegal: combinations that break a rule.
        duplicates: combinations that lower to the Program of an earlier member; the others are
            distinct legal strategies (`strategies`).
        infeasible: members whose lower bound of peak memory, or simulated peak, exceeds the
            capacity.
        bounded_b0, bounded_b1: members with a lower bound of their time, or of all members of their
            mesh, that is not below the best.
        simulated: members that were fully simulated.
        best_s: step seconds of the answer.
        lower_bound_s: seconds that no member can beat.
        gap: (best - lower bound) / best.
        universal_gap: the gap against the bound for every plan, total work over total achievable
            rate.
        stopped_at: number of the search's clock check at which the time limit stopped it (0 =
            never): a search that stops there again has the same answer.
        joint: part of a joint space. There, members with any order count once, bounded_b1 are those
            whose longest path is not below the best, and none is illegal or a duplicate.
        mixed: part of a mixed cluster's space. There, only evaluated members count, and each
            bounded member is bounded by the longest path of its own cut.
        scenarios: part of a search over several states of the cluster. There, seconds are means of
            the slow tail, and members those of all states' searches together.
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
        """Number of distinct legal strategies of the space."""
        return self.enumerated - self.illegal - self.duplicates


def stops_of(certificate: Certificate) -> Stops:
    """The clock checks at which the parts of the certified search were stopped."""
    mixed, joint = certificate.mixed, certificate.joint
    grid_stops = tuple([pool.stopped_at for pool in mixed.alone]) if mixed is not None else ()
    return Stops(
        search=certificate.stopped_at,
        grids=grid_stops if joint is None else (joint.grid_stopped_at,),
        composed=mixed.composed_stopped_at if mixed is not None else 0,
    )


def claim(*, optimal: bool, lower_bound_s: float) -> str:
    """Sentence that states the optimality, or the lower bound, of a certificate."""
    if optimal:
        return "Optimal: no other strategy of the space is faster."
    return f"Not proven optimal: no strategy of the space takes less than {lower_bound_s:.4g} s."


def assert_sound(*, best_s: float, lower_bound_s: float, universal_gap: float) -> None:
    """Assert that neither lower bound exceeds the answer; every search calls this."""
    assert 0 <= lower_bound_s <= best_s < float("inf"), (
        f"{lower_bound_s} s is called a bound of {best_s} s"
    )
    assert universal_gap >= 0, (
        f"the bound that holds for every plan is {-universal_gap:.3g} above the best"
    )
