"""The command lines that make a request again: ``shardwright plan``, ``simulate`` and others."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any, Final

from shardwright.errors import UsageError
from shardwright.search.search_request import Request
from shardwright.units import GIB, GIGA, MEGA, TERA

MAX_DECIMALS: Final = 30
"""Most decimals that are tried for a number."""


def request_to_command(
    request: Request,
    *,
    verb: str = "plan",
    clusters: Sequence[str] = (),
    options: Iterable[str] = (),
) -> tuple[str, ...]:
    """Words of the command that asks a request again; options at their defaults are left out.

    Args:
        verb: ``plan``, ``guide``, ``compare`` or ``simulate``.
        clusters: further clusters, of ``compare``.
        options: words of the verb's own options, which are not of the request.

    Raises:
        UsageError: no option of the verb can say a value of the request.
    """
    words = ["shardwright", verb, request.model, request.cluster, *clusters]
    for field in fields(Request):
        value = getattr(request, field.name)
        if field.name not in _OPTIONS or (field.name not in _ALWAYS and value == field.default):
            continue
        if field.name not in _FIELDS[verb]:
            name = field.name.replace("_", " ")
            raise UsageError(
                f"the command has no option for {name}, so it cannot make the request again",
                hint=f"leave {name} at its default, or use `plan`",
            )
        words += _OPTIONS[field.name](value)
    if request.reserve_bytes and request.reserve_fraction:
        raise UsageError(
            "a request that reserves bytes and a share of the memory has no command",
            hint="reserve one of both",
        )
    return (*words, *options)


def price_words(prices: Mapping[str, float]) -> list[str]:
    """Words of the options for dollars a device-hour by accelerator; an empty name is any."""
    return [
        word
        for name, dollars in prices.items()
        for word in ("--price", f"{name}={dollars!r}" if name else repr(dollars))
    ]


def command_text(
    request: Request,
    *,
    verb: str = "plan",
    clusters: Sequence[str] = (),
    options: Iterable[str] = (),
) -> str:
    """The command of `request_to_command` as a shell reads it; empty if no option can say a value.

    Args:
        verb, clusters, options: as of `request_to_command`.
    """
    try:
        words = request_to_command(request, verb=verb, clusters=clusters, options=options)
    except UsageError:
        return ""
    return shlex.join(words)


def without_search_values(request: Request) -> Request:
    """The request without the values that only a search reads, such as pins.

    The step of a strategy whose degrees are all given is the same without them.
    """
    usual: dict[str, Any] = {
        field.name: field.default for field in fields(Request) if field.name in _OF_SEARCH
    }
    return replace(request, **usual)


def strategy_options(strategies: Iterable[str]) -> tuple[str, ...]:
    """Words of the options that name strategies."""
    return tuple(word for strategy in strategies for word in ("--strategy", strategy))


def cost_options(prices: Mapping[str, float], *, tokens: float) -> tuple[str, ...]:
    """Words of the options for the cost of a training run.

    Args:
        prices: dollars a device-hour by name; an empty name is any device.
        tokens: tokens of the training run; 0 = not known.
    """
    words = price_words(dict(sorted(prices.items())))
    return (*words, "--tokens", _count(tokens)) if tokens else tuple(words)


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


def _count(value: float) -> str:
    """A count with the letter of its size, such as 1.5T; all its digits where these are many."""
    for size, letter in ((TERA, "T"), (GIGA, "B"), (MEGA, "M"), (1, "")):
        text = f"{value / size:.12g}"
        if value >= size and float(text) * size == value:
            return text + letter
    return repr(value)


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
_OF_SEARCH: Final = frozenset(
    {
        *("pins", "excludes", "max_devices", "use_all", "headroom", "search_memory"),
        *("space", "lanes", "top", "objective", "budget", "tail"),
    }
)
"""Fields that only a search of plans reads."""
_OF_SIMULATE: Final = frozenset(_OPTIONS) - _OF_SEARCH - {"scenarios"}
_OF_COMPARE: Final = _OF_SIMULATE | {"pins", "excludes"}
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "plan": frozenset(_OPTIONS),
    "guide": _OF_COMPARE | {"max_devices", "headroom"},
    "compare": _OF_COMPARE,
    "simulate": _OF_SIMULATE,
}
"""Fields of a request that each verb has options for."""
