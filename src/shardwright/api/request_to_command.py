"""The command line of ``shardwright plan`` that makes a request again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any, Final

from shardwright.errors import UsageError
from shardwright.search.search_request import Request
from shardwright.units import GIB

PRICED_TOKENS: Final = "1M"
"""Tokens of a run whose cost a command with prices shows: its dollars are those of a million."""

MAX_DECIMALS: Final = 30
"""Most decimals that are tried for a number."""


def request_to_command(
    request: Request, *, verb: str = "plan", prices: Mapping[str, float] | None = None
) -> tuple[str, ...]:
    """Words of the command that plans a request; options at their defaults are left out.

    Args:
        verb: ``plan``, or another verb with the same options.
        prices: dollars a device-hour by name, with which the command shows the cost of a million
            tokens.

    Raises:
        UsageError: no option can say a value of the request.
    """
    words = ["shardwright", verb, request.model, request.cluster]
    for field in fields(Request):
        value = getattr(request, field.name)
        if field.name in _ALWAYS or (field.name in _OPTIONS and value != field.default):
            words += _OPTIONS[field.name](value)
    if request.reserve_bytes and request.reserve_fraction:
        raise UsageError(
            "a request that reserves bytes and a share of the memory has no command",
            hint="reserve one of both",
        )
    words += price_words(dict(sorted((prices or {}).items())))
    return (*words, "--tokens", PRICED_TOKENS) if prices else tuple(words)


def price_words(prices: Mapping[str, float]) -> list[str]:
    """Words of the options for dollars a device-hour by accelerator; an empty name is any."""
    return [
        word
        for name, dollars in prices.items()
        for word in ("--price", f"{name}={dollars!r}" if name else repr(dollars))
    ]


def command_text(request: Request) -> str:
    """The command that plans a request, as a shell reads it; empty if no option can say a value."""
    try:
        return shlex.join(request_to_command(request))
    except UsageError:
        return ""


def _plain(option: str) -> Callable[[Any], list[str]]:
    """Function that writes a value as the words of an option: the option, then the value."""
    return lambda value: [option, str(value)]


def _flag(option: str) -> Callable[[Any], list[str]]:
    """Function that gives the words of an option without a value."""
    return lambda value: [option]


def _choices(option: str) -> Callable[[Any], list[str]]:
    """Function that writes choices as one option for each axis: ``--pin tp=4,8``."""
    return lambda choices: [
        word for axis, values in choices for word in (option, f"{axis}={','.join(values)}")
    ]


def _percent(option: str) -> Callable[[Any], list[str]]:
    """Function that writes a fraction as the words of an option in percent."""
    return lambda share: [
        option,
        f"{_shortest(Decimal(share) * 100, lambda text: float(text) / 100 == share)}%",
    ]


def _gibibytes(option: str) -> Callable[[Any], list[str]]:
    """Function that writes bytes as the words of an option in GiB."""
    return lambda count: [
        option,
        _shortest(Decimal(count) / GIB, lambda text: round(float(text) * GIB) == count),
    ]


def _dollars(option: str) -> Callable[[Any], list[str]]:
    """Function that writes dollars as the words of an option."""
    return lambda value: [option, _shortest(Decimal(value), lambda text: float(text) == value)]


def _shortest(exact: Decimal, is_read: Callable[[str], bool]) -> str:
    """The number with the fewest decimals that `is_read` accepts, without an exponent."""
    texts = (f"{round(exact, digits):f}" for digits in range(MAX_DECIMALS))
    return next((text for text in texts if is_read(text)), f"{exact:f}")


_ALWAYS: Final = frozenset({"seq_len", "global_batch"})
_OPTIONS: Final[Mapping[str, Callable[[Any], list[str]]]] = {
    "seq_len": _plain("--seq-len"),
    "global_batch": _plain("--global-batch"),
    "runtime": _plain("--runtime"),
    "precision": _plain("--precision"),
    "pins": _choices("--pin"),
    "excludes": _choices("--exclude"),
    "max_devices": _plain("--max-devices"),
    "use_all": _flag("--use-all"),
    "reserve_bytes": _gibibytes("--memory-reserve"),
    "reserve_fraction": _percent("--memory-reserve"),
    "headroom": _percent("--headroom"),
    "search_memory": _gibibytes("--search-memory"),
    "encoder_len": _plain("--encoder-len"),
    "image_tokens": _plain("--image-tokens"),
    "expert_imbalance": _plain("--expert-imbalance"),
    "dropout": _flag("--dropout"),
    "gradient_wire": _plain("--gradient-wire"),
    "space": _plain("--space"),
    "lanes": _plain("--lanes"),
    "top": _plain("--top"),
    "profile": _plain("--profile"),
    "train": _plain("--train"),
    "teacher": _plain("--teacher"),
    "objective": _plain("--objective"),
    "budget": _dollars("--budget"),
    "scenarios": _plain("--scenarios"),
    "tail": _plain("--tail"),
}
"""Words of the option of each field of a request."""
