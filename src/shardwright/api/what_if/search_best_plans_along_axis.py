"""Search the best plan of a request at several values of an axis, and where it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Final

from shardwright.api.request_to_problem import problem_of, with_defaults
from shardwright.api.searches.bisect_change_of_best_plan import bisect_change
from shardwright.api.searches.find_certified_simulation import (
    find_certified_simulation,
    require_series_of_searches,
)
from shardwright.api.training_run_days_and_dollars import with_training_cost
from shardwright.api.what_if.axes_of_request import (
    Axis,
    Prices,
    axis_of,
    own_value,
    prices_at,
    request_at,
    usual_values,
)
from shardwright.errors import InfeasibleError, StrategyError, UsageError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.progress_callback import Progress
from shardwright.search.best_simulation_with_certificate import CertifiedSimulation
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP
from shardwright.search.what_if_best_plans_result import BreakEven, WhatIf, WhatIfPosition
from shardwright.units import MEGA

TOLERANCE: Final = 0.01
"""Largest distance of the two values of a break-even, as a share of the lower one."""
Differs = Callable[[WhatIfPosition, WhatIfPosition], bool]
"""Function that compares the plan at the low end of an interval with the plan at another value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The best plan of a request, or the reason why nothing fits."""

    found: CertifiedSimulation | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Inputs of the search at one value of an axis."""

    axis: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bisection:
    """Inputs of the search for a break-even between two positions of an axis."""

    axis: str
    low: WhatIfPosition
    high: WhatIfPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The request and the prices that all searches share."""

    request: Request
    prices: Prices


def plans_differ(low: WhatIfPosition, other: WhatIfPosition) -> bool:
    """True if the best plans at two positions are not equal, or one of both does not exist."""
    return low.plan != other.plan


def what_if(
    request: Request,
    axis: str,
    values: Sequence[float] = (),
    *,
    prices: Mapping[str, float] | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """Search the best plan of a request at several values of one axis.

    Args:
        axis: a name of `axes_of_request.AXES`.
        values: whole numbers or factors; () = `axes_of_request.usual_values`.
        prices: dollars a device-hour, beside those of the cluster and the catalog.
        engine: runs the searches; the answer is the same.

    Raises:
        UsageError: there is no such axis, or the request's space takes too long to search.
        ShardwrightError: a value makes no valid request.
    """
    return what_if_of_axes(
        request, {axis: values}, prices=prices, engine=engine, progress=progress
    )[0]


def what_if_of_axes(
    request: Request,
    axes: Mapping[str, Sequence[float]],
    *,
    prices: Mapping[str, float] | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> tuple[WhatIf, ...]:
    """Search the best plans of a request along several axes, and all break-evens.

    After Ctrl-C the positions whose search had ended are kept.

    Args:
        axes: values by name of the axis, as in `what_if`.

    Raises:
        ShardwrightError: as `what_if`.
    """
    request = with_defaults(request)
    _require_one_best_plan(request)
    question, engine = _Question(request=request, prices=dict(prices or {})), engine or Serial()
    all_values = {
        axis: tuple(map(float, values or usual_values(request, axis, question.prices)))
        for axis, values in ((axis_of(name), values) for name, values in axes.items())
    }
    searches = [
        _Search(axis=axis.name, value=value)
        for axis, values in all_values.items()
        for value in values
        if value != own_value(request, axis)
    ]
    for search in searches:
        request_at(request, axis_of(search.axis), search.value, question.prices)
    # The request itself is a position of most axes; its search fills the caches of the workers.
    with_base = [axis for axis, values in all_values.items() if own_value(request, axis) in values]
    base = _best_plan(request) if with_base else None
    done = _counter(progress, len(searches), "what if")
    found = engine.map(_searched, searches, shared=question, done=done)
    positions: dict[str, list[WhatIfPosition]] = {axis.name: [] for axis in all_values}
    if base is not None:
        for axis in with_base:
            own = _position_of(question, axis, own_value(request, axis), base)
            positions[axis.name].append(own)
    for search, position in zip(searches, found, strict=True):
        if position is not None:
            positions[search.axis].append(position)
    for several in positions.values():
        several.sort(key=lambda position: position.value)
    break_evens = _break_evens(question, positions, engine, progress)
    return tuple(
        WhatIf(
            axis=name,
            request=request,
            positions=tuple(several),
            break_evens=tuple(break_evens[name]),
        )
        for name, several in positions.items()
    )


def break_even(
    request: Request,
    axis: str,
    low: float,
    high: float,
    differs: Differs = plans_differ,
    *,
    prices: Mapping[str, float] | None = None,
    tolerance: float = TOLERANCE,
) -> BreakEven | None:
    """Bisect where the plan at `low` stops being best; None if `high` has it too, or on Ctrl-C.

    Between `low` and `high` the plan may change more than once; this is one of the changes. An axis
    of factors is divided until the two values are within `tolerance`, an axis of whole numbers
    until no multiple of `low` by a power of two is between them.

    Args:
        low, high: values of the axis, `low` < `high`.
        differs: is true of the plans at `low` and at a value beyond the change.

    Returns:
        The two nearest positions; None if the plans at `low` and `high` do not differ, or after
        Ctrl-C.

    Raises:
        ShardwrightError: as `what_if`.
    """
    request = with_defaults(request)
    _require_one_best_plan(request)
    question = _Question(request=request, prices=dict(prices or {}))
    one, other = (_position(question, axis_of(axis), value) for value in (low, high))
    if one is None or other is None or not differs(one, other):
        return None
    return _bisected(question, axis_of(axis), one, other, differs, tolerance)


def can_repeat_search(request: Request) -> bool:
    """True if a request has one best plan, whose search is short enough to repeat many times."""
    try:
        _require_one_best_plan(request)
    except UsageError:
        return False
    return True


def _require_one_best_plan(request: Request) -> None:
    """Raise UsageError for requests that have a front of plans, or a long search."""
    require_series_of_searches(request)
    if request.objective == "pareto":
        raise UsageError(
            "a front of time and cost has no single best plan to follow along an axis",
            hint="--objective time or cost",
        )


def _counter(progress: Progress | None, total: int, phase: str) -> Callable[[int], None] | None:
    """Function that reports the number of finished searches; None without `progress`."""
    if progress is None:
        return None
    report = progress
    return lambda done: report(phase, done, total)


def _best_plan(request: Request) -> _Best | None:
    """Search the best plan of a request, or why nothing fits; None after Ctrl-C.

    Raises:
        ShardwrightError: the request has no plan for another reason.
    """
    if STOP.is_set():
        return None
    try:
        found = find_certified_simulation(request, hints=False)
    except InfeasibleError as error:
        return _Best(found=None, why=error.message)
    return None if found.certificate.stopped_at else _Best(found=found, why="")


def _searched(question: _Question, search: _Search) -> WhatIfPosition | None:
    """The position of a search; None after Ctrl-C."""
    return _position(question, axis_of(search.axis), search.value)


def _position(question: _Question, axis: Axis, value: float) -> WhatIfPosition | None:
    """Search the best plan of a question with an axis at a value; None after Ctrl-C."""
    try:
        best = _best_plan(request_at(question.request, axis, value, question.prices))
    except (StrategyError, UsageError) as error:
        # Pins, or the rules of the runtime, may leave no strategy with these numbers.
        best = _Best(found=None, why=error.message)
    return None if best is None else _position_of(question, axis, value, best)


def _position_of(question: _Question, axis: Axis, value: float, best: _Best) -> WhatIfPosition:
    """The position of an axis at a value with its best plan."""
    request = request_at(question.request, axis, value, question.prices)
    prices = prices_at(axis, value, question.prices)
    cluster = problem_of(request).cluster
    return WhatIfPosition(
        value=value,
        is_base=value == own_value(question.request, axis),
        amount=axis.amount(cluster, prices) if axis.amount and cluster.is_uniform else None,
        request=request,
        prices=tuple(sorted(prices.items())),
        devices=cluster.num_devices,
        found=best.found,
        why=best.why,
        usd_per_million_tokens=_usd_per_million_tokens(best.found, prices),
    )


def _usd_per_million_tokens(found: CertifiedSimulation | None, prices: Prices) -> float | None:
    """Dollars for a million tokens under a plan; None without a plan or a price."""
    if found is None:
        return None
    usd = with_training_cost(found.simulation, tokens=0.0, prices=prices).usd_per_token
    return None if usd is None else usd * MEGA


def _break_evens(
    question: _Question,
    positions: Mapping[str, Sequence[WhatIfPosition]],
    engine: Engine,
    progress: Progress | None,
) -> dict[str, list[BreakEven]]:
    """By axis, break-evens between neighbouring positions whose best plans differ."""
    pairs = [
        _Bisection(axis=name, low=low, high=high)
        for name, several in positions.items()
        for low, high in pairwise(several)
        if plans_differ(low, high)
    ]
    found = engine.map(
        _break_even_of_pair,
        pairs,
        shared=question,
        done=_counter(progress, len(pairs), "break-evens"),
    )
    by_axis: dict[str, list[BreakEven]] = {name: [] for name in positions}
    for pair, one in zip(pairs, found, strict=True):
        by_axis[pair.axis].append(one)
    return by_axis


def _break_even_of_pair(question: _Question, pair: _Bisection) -> BreakEven:
    """The break-even between two neighbours; on an axis of whole numbers the two themselves."""
    axis = axis_of(pair.axis)
    if not axis.is_continuous:
        return BreakEven(low=pair.low, high=pair.high)
    return _bisected(question, axis, pair.low, pair.high, plans_differ, TOLERANCE)


def _bisected(
    question: _Question,
    axis: Axis,
    low: WhatIfPosition,
    high: WhatIfPosition,
    differs: Differs,
    tolerance: float,
) -> BreakEven:
    """Halve the interval between two positions whose plans differ; after Ctrl-C as far as it is."""

    def middle_of(lower: WhatIfPosition, upper: WhatIfPosition) -> WhatIfPosition | None:
        """The searched position between two; None if they are near enough, or after Ctrl-C."""
        value = _value_between(axis, lower.value, upper.value, tolerance)
        return None if value is None else _position(question, axis, value)

    lower, upper = bisect_change(
        low, high, middle_of=middle_of, is_changed=lambda position: differs(low, position)
    )
    return BreakEven(low=lower, high=upper)


def _value_between(axis: Axis, low: float, high: float, tolerance: float) -> float | None:
    """Geometric mean of two (whole: `low` times a power of two) to search next; None if near."""
    if axis.is_continuous:
        # Four digits: a factor that can be typed, and finer than the tolerance.
        return None if high <= low * (1 + tolerance) else float(f"{sqrt(low * high):.4g}")
    steps = 0
    while low * 2 ** (steps + 1) < high:
        steps += 1
    return low * 2 ** ((steps + 1) // 2) if steps else None
