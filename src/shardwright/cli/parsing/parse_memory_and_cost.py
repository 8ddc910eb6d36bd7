"""Parse the options for memory sizes, training tokens, device prices and a budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf

from shardwright.errors import UsageError
from shardwright.hardware.catalog.list_prices import catalog_price_name
from shardwright.units import GIB, parse_count


def read_reserve(text: str) -> tuple[int, float]:
    """Parse --memory-reserve: ``"4"`` or ``"4GiB"`` is (bytes, 0.0); ``"5%"`` is (0, 0.05).

    Raises:
        UsageError: the text is not a size, is negative, or is all of the memory.
    """
    hint = "4 for GiB, or 5% of every device's memory"
    word = text.strip().lower()
    percent = word.endswith("%")
    try:
        value = float(word.removesuffix("%").removesuffix("gib").strip())
    except ValueError:
        raise UsageError(f"--memory-reserve {text[:40]!r} is not a size", hint=hint) from None
    if not 0 <= value < (100 if percent else 2**40):
        raise UsageError(f"--memory-reserve {text[:40]!r} is out of range", hint=hint)
    return (0, value / 100) if percent else (round(value * GIB), 0.0)


def read_search_memory(text: str) -> int:
    """Parse --search-memory: ``"2"`` or ``"2GiB"`` as bytes.

    Raises:
        UsageError: the text is not a size.
    """
    word = text.strip().lower().removesuffix("gib").strip()
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", word):
        raise UsageError(
            f"--search-memory {text[:40]!r} is not a size",
            hint="2 or 2GiB; a larger space is searched in parts",
        )
    return round(float(word) * GIB)


def read_tokens(text: str) -> float:
    """Parse --tokens: ``"15T"`` is 15e12; empty text is 0.

    Raises:
        UsageError: the text is not a count.
    """
    try:
        return parse_count(text) if text else 0.0
    except ValueError:
        raise UsageError(
            f"--tokens {text[:40]!r} is no number of tokens", hint="such as 15T or 300B"
        ) from None


def read_prices(words: Sequence[str] | None) -> dict[str, float]:
    """Parse --price in dollars a device-hour: ``["h100-sxm=2.5"]`` or, under name "", ``["2.5"]``.

    A price without a name (``"2.5"``) has the key "" and holds for all devices.

    Raises:
        UsageError: a word is not a price, or names no known accelerator or instance.
    """
    prices: dict[str, float] = {}
    for word in words or ():
        name, _, text = word.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < inf:
            raise UsageError(
                f"--price {word[:60]!r} is no price",
                hint="dollars a device-hour: 2.5, or h100-sxm=2.5",
            )
        prices[catalog_price_name(name.strip()) if name else ""] = value
    return prices


def read_headroom(text: str) -> float:
    """Parse --headroom: ``"5%"`` is 0.05.

    Raises:
        UsageError: the text is not a percentage below 100.
    """
    number = text.strip().removesuffix("%").strip()
    if not (re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,9})?", number)):
        raise UsageError(
            f"--headroom {text[:40]!r} is not a percentage",
            hint="5% leaves a twentieth of each device's memory free; 0 nothing",
        )
    return float(number) / 100


def read_budget(text: str) -> float:
    """Parse --budget in dollars an hour: ``"40"`` is 40.0; empty text is 0.

    Raises:
        UsageError: the text is not a positive number.
    """
    word = text.strip().lower().removesuffix("usd").strip()
    if not word:
        return 0.0
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", word) or not float(word):
        raise UsageError(
            f"--budget {text[:40]!r} is no number of dollars",
            hint="dollars an hour for all nodes together: 40, or 12.5",
        )
    return float(word)
