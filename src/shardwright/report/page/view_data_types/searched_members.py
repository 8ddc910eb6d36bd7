"""Data of the view of the searched space: strategies by step time and memory, and their counts."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.plans_held_by_file import PlansHeldByFile
from shardwright.report.page.view_data_types.scatter_chart_data import ScatterChart


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedMember:
    """A strategy of the space with its simulated step.

    Args:
        strategy: grid notation.
        step_s: simulated seconds of a step.
        reserved_bytes: memory of the fullest device.
        slower: (its step - best step) / best step, a fraction.
        saved_bytes: memory that it needs less than the best strategy; negative = more.
        found_by: ``search``, or ``report`` if only the report simulated it.
        on_front: True if no other simulated strategy is faster and needs no more memory.
    """

    strategy: str
    step_s: float
    reserved_bytes: int
    slower: float
    saved_bytes: int
    found_by: str
    on_front: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FateCount:
    """Number of members with one fate, as the certificate counts them.

    Args:
        fate: what became of the members.
        members: number in the whole space.
        share: fraction of the distinct legal strategies; None for combinations that are none.
    """

    fate: str
    members: int
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMembers:
    """The strategies that can be nearly as fast as the best, by their lower bounds.

    Args:
        share: how much slower than the best they may be, a fraction.
        members: strategies whose own lower bound is that small.
        unlisted: further strategies, of which only a bound of many together is known.
        least: of those that were simulated and are that fast, the one with the least memory.
    """

    share: float
    members: int
    unlisted: int
    least: SearchedMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontNeighbour:
    """The next strategy of the front: less memory for a longer step; both were simulated.

    Args:
        command: searches only this strategy's values of the axes.
    """

    strategy: str
    step_s: float
    reserved_bytes: int
    saved_bytes: int
    slower: float
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedMembers:
    """The members of the searched space by time and memory.

    Args:
        note: why no strategy is plotted; empty where they are.
        strategies: distinct legal strategies of the space.
        counts: members by fate.
        plotted: number of plotted strategies.
        bounded_singly: strategies that have a lower bound of their own.
        bounded_together: the other strategies, which have a bound in common with others.
        capacity_bytes: memory that a searched plan may fill on a device.
        chart: step seconds against memory: simulated values of simulated strategies, lower bounds
            of the others, with five digits; the labels are notation without words at their
            defaults and without `shared_words`. None where the space was not enumerated.
        shared_words: words of the notation that all plotted strategies have; empty = none.
        simulated: strategies of the front and others that were simulated, the fastest first.
        near: None without a chart.
        neighbour: None where the best strategy is the last of the front.
        held: plans of the file; None where it has no other than the best, or with a chart.
    """

    note: str
    strategies: int
    counts: tuple[FateCount, ...]
    plotted: int = 0
    bounded_singly: int = 0
    bounded_together: int = 0
    capacity_bytes: int = 0
    chart: ScatterChart | None = None
    shared_words: str = ""
    simulated: tuple[SearchedMember, ...] = ()
    near: NearMembers | None = None
    neighbour: FrontNeighbour | None = None
    held: PlansHeldByFile | None = None
