"""Unit conversion and formatting of quantities; the library itself computes in SI units.

Seconds, bytes, FLOPs and bytes/s inside; files and flags carry the unit in the key. No other module
converts a unit or prints a quantity for a person.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
MILLI: Final = 1e-3
MEGA: Final = 10**6
GIGA: Final = 10**9
TERA: Final = 10**12
PICOSECONDS_PER_SECOND: Final = 10**12
BITS_PER_BYTE: Final = 8
MAX_INTEGER_BITS: Final = 4096
"""Most bits of an integer in a file. YAML, TOML and Python read integers in base 16 of any length,
and Python refuses to print long ones.
"""

_TIME_STEPS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTE_STEPS: Final = ((1024**5, "PiB"), (1024**4, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_PARAMETER_STEPS: Final = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_COUNT_STEPS: Final = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def zero_below_clock(seconds: float) -> float:
    """`seconds`, or 0 if they are less than half a picosecond, the simulator's resolution.

    Rounding leaves such values in differences of equal sums.
    """
    return seconds if abs(seconds) * PICOSECONDS_PER_SECOND >= 0.5 else 0.0


def format_bare_seconds(seconds: float, *, digits: int = 4) -> str:
    """Format seconds without the unit, `digits` significant: ``1.234``; 0 below half a picosecond.

    Values below the simulator's clock are ``0``.
    """
    return f"{zero_below_clock(seconds):.{digits}g}"


def format_seconds(seconds: float, *, digits: int = 4) -> str:
    """Format a duration with `digits` significant digits: ``56.7 ms``; ``0 s`` below the clock."""
    seconds = zero_below_clock(seconds)
    for scale, suffix in _TIME_STEPS:
        if abs(seconds) >= scale:
            return f"{seconds / scale:.{digits}g} {suffix}"
    return "0 s" if seconds == 0 else f"{seconds / 1e-9:.{digits}g} ns"


def format_bytes(count: float, *, digits: int = 4) -> str:
    """Format bytes for a person in binary units, `digits` significant digits: ``79.6 GiB``."""
    for scale, suffix in _BYTE_STEPS:
        if abs(count) >= scale:
            return f"{count / scale:.{digits}g} {suffix}"
    return f"{count:.{digits}g} B"


def format_count(count: float, *, digits: int = 4) -> str:
    """Format a count for a person in decimal units, `digits` significant digits: ``405.9 G``."""
    for scale, suffix in _COUNT_STEPS:
        if abs(count) >= scale:
            return f"{count / scale:.{digits}g} {suffix}"
    return f"{count:.{digits}g}"


def format_parameters(count: float, *, digits: int = 4) -> str:
    """Format a number of parameters as model names do, `digits` significant digits: ``405.9B``."""
    for scale, suffix in _PARAMETER_STEPS:
        if abs(count) >= scale:
            return f"{count / scale:.{digits}g}{suffix}"
    return f"{count:.{digits}g}"


def format_dollars(amount: float) -> str:
    """Format dollars: four significant digits, ``0.01234 $``; from 1000 whole, ``1,234 $``."""
    return f"{amount:,.0f} $" if abs(amount) >= 1000 else f"{amount:.4g} $"


def format_percent(fraction: float, *, digits: int = 1) -> str:
    """Format a fraction as a percentage with `digits` decimals: 0.412 is ``41.2 %``."""
    return f"{100 * fraction:.{digits}f} %"


def format_time_change(change: float) -> str:
    """Format a fractional change of a time: 0.032 is ``3.2 % more time``, 0 ``the same``.

    A tool that says "faster" leaves open whether the time falls or the speed rises by the share.
    """
    share = format_percent(abs(change))
    if share == format_percent(0.0):
        return "the same"
    return f"{share} {'more' if change > 0 else 'less'} time"


_COUNT_LETTERS: Final = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12, "p": 10**15}


def parse_count(text: str) -> float:
    """Parse a positive count such as ``15T``, ``300B`` or ``1.5e12``; ValueError if it is none."""
    word = text.strip().lower().replace("_", "")
    scale = _COUNT_LETTERS.get(word[-1:], 1)
    value = float(word[:-1] if scale > 1 else word) * scale
    if not 0 < value < 1e30:
        raise ValueError(text)
    return value


def scale_decimal(value: float, power: int) -> float:
    """Multiply a finite `value` by 10^power without binary rounding: 1.29 us is 1.29e-06 s."""
    return float(Decimal(repr(float(value))).scaleb(power))
