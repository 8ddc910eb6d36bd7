"""Data of the view of a comparison: steps, costs and parts of several strategies."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStrategy:
    """One strategy of a comparison.

    Args:
        slower: (its step - fastest step) / fastest step, a fraction.
        length: its step / the longest step, a fraction.
        usd_per_device_hour, usd_per_million_tokens: None where a device has no price.
        days, usd: of the training run; None where they are not known.
        part_seconds: seconds of each of `ComparedStrategies.part_names`.
        part_lengths: the same as fractions of the longest step of all strategies.
    """

    cluster: str
    strategy: str
    step_s: float
    slower: float
    length: float
    tokens_per_s_per_device: float
    mfu: float
    reserved_bytes: int
    fits: bool
    usd_per_device_hour: float | None
    usd_per_million_tokens: float | None
    days: float | None
    usd: float | None
    part_seconds: tuple[float, ...]
    part_lengths: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPlan:
    """The best plan of a search.

    Args:
        gain: fraction of the fastest compared step that it saves.
        command: command that searches it.
    """

    cluster: str
    strategy: str
    step_s: float
    gain: float
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """A price with its source."""

    of: str
    usd_per_device_hour: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStrategies:
    """Strategies side by side: those that fit first, each part by ascending step.

    Args:
        model: name of the model.
        part_names: parts of the step that any strategy has, the largest first.
        part_heading: words above their table's first column.
        cheapest: place of the strategy with the least dollars a token among those that fit; None
            without prices.
        searched: best plan of the fastest strategy's request; None if nothing fits there.
    """

    model: str
    rows: tuple[ComparedStrategy, ...]
    part_names: tuple[str, ...]
    part_heading: str
    cheapest: int | None
    searched: SearchedPlan | None
    prices: tuple[PriceRow, ...]
