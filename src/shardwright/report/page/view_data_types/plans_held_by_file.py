"""Data of the plans that a plan file holds, by step time and share of memory in use."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.scatter_chart_data import ScatterChart


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlan:
    """A plan that a file holds: its best plan, or one of the others.

    A value is None where this version cannot simulate the plan.

    Args:
        strategy: the grid in notation, or the pipelines in words.
        kind: what the search found it as.
        series: number of the colour of its mark.
        step_s: seconds of its step.
        slower: (its step - best step) / best step, a fraction.
        device: name of the fullest device's kind; empty if all kinds are the same.
        reserved_bytes: memory of the fullest device, the one with the largest share in use.
        capacity_bytes: bytes that a program can allocate on that device.
        memory_share: reserved_bytes / capacity_bytes.
        verdict: ``fits``, the limit of memory that it breaks, or why it was not simulated.
        on_front: True if it fits and no other fitting plan is as fast and has no larger share.
        notation: first lines of its text in the general notation; None where `strategy` is
            notation already, or no text can express the plan.
    """

    strategy: str
    kind: str
    series: int
    step_s: float | None
    slower: float | None
    device: str
    reserved_bytes: int | None
    capacity_bytes: int | None
    memory_share: float | None
    verdict: str
    on_front: bool
    notation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansHeldByFile:
    """The plans that a file holds, simulated by the report.

    Args:
        plans: the plotted ones first, the fastest first, with the best plan of the search; plot
            `k` of the chart is plan `k`.
        others: number of plans beside the best one.
        unfit: number of plans that do not fit.
        has_scenarios: True if the search was for several states of the cluster; steps here are of
            the cluster without these states.
        unequal_devices: True if devices of the cluster differ in memory.
        best: the best plan of the search.
        least: the fitting plan with the smallest share; None if it is the best plan.
        neighbour: the front's next plan after the best one: a smaller share for a longer step.
        command: searches the best plan that leaves as much memory free as the neighbour; empty
            without a neighbour, or if no option can say a value of the request.
        chart: step seconds against share of memory; the labels are the plans' strategies.
    """

    plans: tuple[HeldPlan, ...]
    others: int
    unfit: int
    has_scenarios: bool
    unequal_devices: bool
    best: HeldPlan
    least: HeldPlan | None
    neighbour: HeldPlan | None
    command: str
    chart: ScatterChart
