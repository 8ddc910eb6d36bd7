"""Data of the view of searched changes: the best plan at each position of each axis."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.line_chart_data import LineChart


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPosition:
    """The best plan of the request at one position of an axis.

    Values are None where nothing fits; gains also where nothing fits at the request itself.

    Args:
        value: number of sequences, tokens or devices, or the factor of the request's quantity.
        amount: the quantity at the position, in the format of the axis.
        plan: strategy, or the reason why nothing fits.
        rate: tokens a second for each device of the cluster, idle ones included.
        memory_share: memory of the fullest device, as a fraction of what a program can allocate.
        gap: (step - lower bound) / step of the plan, a fraction; 0 = proven best.
        rate_gain, step_gain, cost_gain: changes against the request's own position, as fractions.
        command: command that searches the plan again.
    """

    value: float
    amount: float
    plan: str
    fits: bool
    step_s: float | None
    tokens_per_s: float | None
    rate: float | None
    usd_per_million_tokens: float | None
    memory_share: float | None
    gap: float | None
    rate_gain: float | None
    step_gain: float | None
    cost_gain: float | None
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """Amounts of an axis between which the best plan changes, and the plans on both sides."""

    low: float
    high: float
    low_plan: str
    high_plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisOfPositions:
    """An axis of the request with its positions.

    Args:
        key: name in `api.what_if.axes_of_request`.
        name: in words.
        unit: words behind an amount; empty where its format has the unit.
        form: format of the amounts, a name of `markup.number_formats.FORMATS`.
        base: number of the request's own position.
        lowest, highest: numbers of the positions with the lowest and the highest rate; None if
            nothing fits anywhere.
        note: words about what the axis cannot change; empty if there is nothing to say.
        positions: in ascending order of their values.
        changes: between neighbouring positions with different best plans.
        chart: the rate, or on the axis of prices the cost; None if nothing fits anywhere.
    """

    key: str
    name: str
    unit: str
    form: str
    base: int
    lowest: int | None
    highest: int | None
    note: str
    positions: tuple[AxisPosition, ...]
    changes: tuple[PlanChange, ...]
    chart: LineChart | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutAxis:
    """An axis without positions, and the reason."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAxes:
    """The best plans of the request along each axis, all else equal.

    Args:
        axes: axes with positions.
        left_out: the other axes.
        strongest: number of the axis whose positions' rates differ most from the request's, or of
            each other where nothing fits at the request; None if nothing fits anywhere.
        best: number of the axis that has the position with the highest rate of all.
        searches: number of searched plans.
        complete: False if Ctrl-C ended the searches.
    """

    axes: tuple[AxisOfPositions, ...]
    left_out: tuple[LeftOutAxis, ...]
    strongest: int | None
    best: int | None
    searches: int
    complete: bool
