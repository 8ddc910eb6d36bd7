"""Contents of the report's view of searched changes: a search for each position of each axis."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from shardwright.api.request_to_command import cost_options, request_to_command
from shardwright.api.request_to_problem import problem_of
from shardwright.api.what_if.axes_of_request import (
    AXES,
    Axis,
    effect_of_price,
    usual_values,
    why_without,
)
from shardwright.api.what_if.search_best_plans_along_axis import what_if_of_axes
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.progress_callback import Progress
from shardwright.report.page.view_data_types.line_chart_data import (
    ChartAxis,
    ChartSeries,
    LineChart,
    round_ticks,
)
from shardwright.report.page.view_data_types.what_if_axes import (
    AxisOfPositions,
    AxisPosition,
    LeftOutAxis,
    PlanChange,
    WhatIfAxes,
)
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_request import Request
from shardwright.search.what_if_best_plans_result import WhatIf, WhatIfPosition
from shardwright.units import MEGA

_CHANGE: Final = "the best plan changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """Name of an axis on the page, unit and format of its amounts."""

    name: str
    unit: str
    form: str


_WORDS: Final = {
    "global_batch": _Words(name="global batch", unit="sequences", form="count"),
    "seq_len": _Words(name="sequence length", unit="tokens", form="count"),
    "devices": _Words(name="number of devices", unit="devices", form="count"),
    "network": _Words(name="network bandwidth of a device", unit="", form="gigabytes_per_s"),
    "memory": _Words(name="memory of a device", unit="", form="bytes"),
    "price": _Words(name="price of a device-hour", unit="", form="dollars"),
}
_FACTOR: Final = "factor"
"""Format of the amounts of a cluster with several kinds of devices."""


def what_if_axes(
    request: Request,
    *,
    prices: Mapping[str, float] | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> WhatIfAxes:
    """Search the best plans along all axes of a request.

    Args:
        prices: dollars a device-hour, beside those of the cluster and the catalog.

    Raises:
        ShardwrightError: as `api.what_if.search_best_plans_along_axis.what_if`.
    """
    given = dict(prices or {})
    reasons = {name: why_without(request, axis, given) for name, axis in AXES.items()}
    values = {
        name: usual_values(request, axis, given) for name, axis in AXES.items() if not reasons[name]
    }
    found = what_if_of_axes(request, values, prices=prices, engine=engine, progress=progress)
    for one in found:
        if _base_of(one) is None:
            reasons[one.axis] = "the searches were stopped before its first plan"
    shown = [one for one in found if _base_of(one) is not None]
    axes = tuple(_axis(one) for one in shown)
    return WhatIfAxes(
        axes=axes,
        left_out=tuple(
            LeftOutAxis(name=_WORDS[name].name, why=why) for name, why in reasons.items() if why
        ),
        strongest=_largest([_spread(axis) for axis in axes]),
        best=_largest([_highest_rate(axis) for axis in axes]),
        searches=sum(len(axis.positions) for axis in axes),
        complete=all(len(one.positions) == len(values[one.axis]) for one in found),
    )


def _base_of(found: WhatIf) -> int | None:
    """Index of the request's own position; None if it was not searched."""
    same = [at for at, one in enumerate(found.positions) if one.is_base]
    return same[0] if same else None


def _axis(found: WhatIf) -> AxisOfPositions:
    """Contents of a what-if axis on which the request's own position was searched."""
    words, axis = _WORDS[found.axis], AXES[found.axis]
    base = _base_of(found)
    assert base is not None
    uniform = problem_of(found.request).cluster.is_uniform
    form = words.form if uniform or not axis.is_continuous else _FACTOR
    positions = tuple(_position(one, found.positions[base]) for one in found.positions)
    rates = {at: one.rate for at, one in enumerate(positions) if one.rate is not None}
    changes = tuple(
        PlanChange(
            low=_amount(change.low),
            high=_amount(change.high),
            low_plan=_plan_text(change.low),
            high_plan=_plan_text(change.high),
        )
        for change in found.break_evens
    )
    return AxisOfPositions(
        key=found.axis,
        name=words.name,
        unit=words.unit,
        form=form,
        base=base,
        lowest=min(rates, key=lambda at: rates[at], default=None),
        highest=max(rates, key=lambda at: rates[at], default=None),
        note=effect_of_price(found.request, axis),
        positions=positions,
        changes=changes,
        chart=_chart(axis, words, form, positions, changes),
    )


def _amount(position: WhatIfPosition) -> float:
    """Quantity of a position; its whole number or factor where the quantity has no single value."""
    return position.value if position.amount is None else position.amount


def _plan_text(position: WhatIfPosition) -> str:
    """Notation of the best plan at a position, or the reason why nothing fits."""
    return position.strategy or f"nothing fits: {position.why}"


def position_command(one: WhatIfPosition) -> tuple[str, ...]:
    """Words of the command that plans a position; with prices it shows dollars a million tokens."""
    prices = dict(one.prices)
    costs = cost_options(prices, tokens=MEGA) if prices else ()
    return request_to_command(one.request, options=costs)


def _position(one: WhatIfPosition, base: WhatIfPosition) -> AxisPosition:
    """Contents of a what-if position, with its changes against the request's own position."""
    command = shlex.join(position_command(one))
    certificate = None if one.found is None else one.found.certificate
    prediction = None if one.found is None else one.found.simulation.prediction
    return AxisPosition(
        value=one.value,
        amount=_amount(one),
        plan=_plan_text(one),
        fits=one.found is not None,
        step_s=one.step_s,
        tokens_per_s=None if prediction is None else prediction.tokens_per_s,
        rate=one.tokens_per_s_per_device,
        usd_per_million_tokens=one.usd_per_million_tokens,
        memory_share=(
            None if prediction is None else prediction.reserved_bytes / prediction.capacity_bytes
        ),
        gap=None if certificate is None else 0.0 if certificate.optimal else certificate.gap,
        rate_gain=_gain(one.tokens_per_s_per_device, base.tokens_per_s_per_device),
        step_gain=_gain(one.step_s, base.step_s),
        cost_gain=_gain(one.usd_per_million_tokens, base.usd_per_million_tokens),
        command=command,
    )


def _gain(value: float | None, base: float | None) -> float | None:
    """Change against a base, as a fraction of it; None where one of both is not known."""
    return None if value is None or not base else value / base - 1.0


def _chart(
    axis: Axis,
    words: _Words,
    form: str,
    positions: Sequence[AxisPosition],
    changes: Sequence[PlanChange],
) -> LineChart | None:
    """Curve of tokens/s of a device, or of cost by price; None for one position or no values."""
    priced = axis.name == "price"
    values = tuple(one.usd_per_million_tokens if priced else one.rate for one in positions)
    known = [value for value in values if value is not None]
    if not known or len(positions) < 2:
        return None
    amounts = tuple(one.amount for one in positions)
    name = "dollars for a million tokens" if priced else "tokens/s of a device"
    return LineChart(
        x=ChartAxis(
            name=words.name if form != _FACTOR else f"{words.name}, times that of the request",
            form=form,
            ticks=_ticks(amounts),
            values=amounts,
            logarithmic=True,
        ),
        y=ChartAxis(
            name=name,
            form="dollars" if priced else "rate",
            ticks=round_ticks([0.0, *known]),
        ),
        series=(ChartSeries(name=name, values=values),),
        # A plan of an axis of whole numbers changes somewhere between two positions.
        marks=tuple((change.low * change.high) ** 0.5 for change in changes),
        marks_name=_CHANGE if changes else "",
    )


def _ticks(amounts: Sequence[float]) -> tuple[float, ...]:
    """The first, the middle and the last amount: labels of three have room on a narrow screen."""
    return tuple(dict.fromkeys((amounts[0], amounts[len(amounts) // 2], amounts[-1])))


def _spread(axis: AxisOfPositions) -> float | None:
    """Largest relative change of the rate from the own position's on an axis; None if none fits."""
    if axis.lowest is None or axis.highest is None:
        return None
    low, high = axis.positions[axis.lowest].rate, axis.positions[axis.highest].rate
    base = axis.positions[axis.base].rate or low
    assert low is not None
    assert high is not None
    assert base is not None
    return max(high / base - 1.0, 1.0 - low / base)


def _highest_rate(axis: AxisOfPositions) -> float | None:
    """Highest tokens/s of a device along an axis; None if nothing fits."""
    return None if axis.highest is None else axis.positions[axis.highest].rate


def _largest(values: Sequence[float | None]) -> int | None:
    """Index of the axis with the largest value; None if no axis has one."""
    known = {at: value for at, value in enumerate(values) if value is not None}
    return max(known, key=lambda at: known[at], default=None)
