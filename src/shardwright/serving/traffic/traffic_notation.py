"""Traffic and precision as people write them on a command line, read once."""

from __future__ import annotations

import re
from dataclasses import replace
from math import isfinite
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.job.serving import (
    ClosedLoop,
    Diurnal,
    NumberFormat,
    OperatorPrecision,
    Poisson,
    Precision,
    Promise,
    SharedPrefix,
    Speculation,
    TokenRange,
)

_MAX_TEXT: Final = 300
MOST_TOKENS: Final = 10**7
MOST_REQUESTS: Final = 10**7
_SECONDS: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_CLASSES: Final = ("attention", "output", "mlp", "experts", "head", "kv")


def _require_short(text: str, what: str) -> None:
    if not text.strip() or len(text) > _MAX_TEXT:
        raise UsageError(
            f"{what} is 1 to {_MAX_TEXT} characters, not {len(text)}",
            hint="see `shardwright serve-simulate --help`",
        )


def read_tokens(text: str, *, flag: str) -> TokenRange:
    """``1024``, ``1k`` (1,024), or two of them: ``819-1024``, each number in between as likely.

    Raises:
        UsageError: it is neither.
    """
    _require_short(text, flag)
    found = [_whole(part, flag=flag) for part in text.split("-", 1)]
    if found[0] > found[-1]:
        raise UsageError(
            f"{flag} {text[:40]}: the range ends before it begins",
            hint="write the smaller number first, as 819-1024",
        )
    return TokenRange(low=found[0], high=found[-1])


def _whole(text: str, *, flag: str) -> int:
    word = text.strip().lower().replace(",", "").replace("_", "")
    scale = 1024 if word.endswith("k") else 1
    digits = word.removesuffix("k")
    if (
        not digits.isascii()
        or not digits.isdigit()
        or len(digits) > 8
        or not 1 <= int(digits) * scale <= MOST_TOKENS
    ):
        raise UsageError(
            f"{flag}: {text[:40]!r} is not a number of tokens", hint="such as 1024, 8k or 819-1024"
        )
    return int(digits) * scale


def read_seconds(text: str, *, flag: str) -> float:
    """``500ms``, ``2s``, ``24h`` in seconds.

    Raises:
        UsageError: no number with a unit, or not above 0.
    """
    found = re.fullmatch(r"([0-9.eE+-]+)\s*(us|ms|s|min|m|h|d)", text.strip())
    try:
        value = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0):
        raise UsageError(
            f"{flag}: {text[:40]!r} is no time above 0 with a unit", hint="such as 500ms, 2s or 24h"
        )
    return value


def read_arrivals(text: str, *, requests: int) -> Poisson | Diurnal:
    """``poisson:12/s`` or ``diurnal:12/s,0.5,24h``: the mean rate, by what share of it it swings,
    and over which time.

    Raises:
        UsageError: neither, or a number out of its range.
    """
    _require_short(text, "--arrivals")
    kind, _, rest = text.partition(":")
    parts = [part.strip() for part in rest.split(",")]
    if kind == "poisson" and len(parts) == 1:
        return Poisson(per_second=_rate(parts[0]), requests=requests)
    if kind == "diurnal" and len(parts) == 3:
        swing = _fraction(parts[1], flag="--arrivals diurnal", most=1.0)
        return Diurnal(
            per_second=_rate(parts[0]),
            swing=swing,
            period_s=read_seconds(parts[2], flag="--arrivals diurnal"),
            requests=requests,
        )
    known = ("poisson:12/s", "diurnal:12/s,0.5,24h")
    raise UsageError(
        f"--arrivals {text[:40]!r} is not known",
        hint=f"{' or '.join(known)}; a log of requests is --trace FILE",
    )


def _rate(text: str) -> float:
    found = re.fullmatch(r"([0-9.eE+-]+)\s*/\s*(s|min|m|h|d)", text)
    try:
        value = float(found[1]) / _SECONDS[found[2]] if found else 0.0
    except ValueError:
        value = 0.0
    if not (isfinite(value) and 0 < value <= 1e7):
        raise UsageError(
            f"{text[:40]!r} is no rate of requests", hint="such as 12/s, 0.5/s or 600/min"
        )
    return value


def _fraction(text: str, *, flag: str, most: float) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise UsageError(
            f"{flag}: {text[:40]!r} is not between 0 and {most:g}", hint="such as 0.5 or 50%"
        )
    return value


def read_promise(text: str) -> Promise:
    """``ttft=500ms,tpot=30ms,e2e=10s,share=0.99``: each at most once; the share is 0.99 where it is
    not said.

    Raises:
        UsageError: a word that is none of them, twice the same, or a time or share out of its
        range.
    """
    _require_short(text, "--slo")
    names = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s"}
    values: dict[str, float] = {}
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        field = names.get(name, name)
        if field in values or (name not in names and name != "share"):
            hint = "keep one of them" if field in values else nearest(name[:20], (*names, "share"))
            raise UsageError(
                f"--slo: {name[:20]!r} is {'said twice' if field in values else 'not known'}",
                hint=hint,
            )
        values[field] = (
            _fraction(value, flag="--slo share", most=1.0)
            if name == "share"
            else read_seconds(value, flag=f"--slo {name}")
        )
    if not values.keys() - {"share"}:
        raise UsageError("--slo promises no time", hint="such as ttft=500ms,tpot=30ms")
    if values.get("share", 1.0) <= 0:
        raise UsageError("--slo: a share of 0 promises nothing", hint="such as share=0.99")
    return Promise(**values)


def read_prefix(text: str) -> SharedPrefix:
    """``2000x4``: prompts begin with one of 4 texts of 2,000 tokens.

    Raises:
        UsageError: it is not of that form.
    """
    tokens, cross, groups = text.strip().partition("x")
    if (
        not cross
        or not groups.isascii()
        or not groups.isdigit()
        or not 1 <= int(groups[:9]) <= MOST_REQUESTS
    ):
        raise UsageError(
            f"--prefix {text[:40]!r} is not TOKENSxTEXTS",
            hint="such as 2000x4: one of 4 texts of 2,000 tokens",
        )
    return SharedPrefix(tokens=_whole(tokens, flag="--prefix"), groups=int(groups[:9]))


def read_speculation(guesses: int, acceptance: str) -> Speculation | None:
    """Guesses of a worker with a stated share that is right.

    Raises:
        UsageError: one of the two without the other, or a share that is none.
    """
    if not guesses:
        if acceptance:
            raise UsageError(
                "--acceptance says how many guesses are right, and the deployment makes none",
                hint="add mtp1 to its words",
            )
        return None
    if not acceptance:
        raise UsageError(
            f"the deployment guesses {guesses} tokens ahead, and nothing says how many are right",
            hint=(
                "--acceptance 0.8: the share of guesses that are right when those before them are;"
                " it depends on model and text"
            ),
        )
    return Speculation(
        tokens=guesses, acceptance=_fraction(acceptance, flag="--acceptance", most=1.0)
    )


def read_precision(text: str) -> Precision:
    """A format for all products of the layers (``fp8``), or by class: ``attention=bf16
    experts=nvfp4 kv=fp8 mlp=int4/bf16``.

    Behind a slash stands the format that tokens are cast to; without one it is the weights' own,
    but 16 bits for int4 and mxfp4, which engines unpack before they multiply. Logits, and what is
    not said, are in bf16; so are keys and values.

    Raises:
        UsageError: a class or a format that is not known.
    """
    _require_short(text, "--precision")
    found = Precision()
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if not equals:
            both = _format(name)
            found = replace(found, attention=both, mlp=both, experts=both)
        elif name == "kv":
            found = replace(found, kv=_format(value).weights)
        elif name in _CLASSES:
            found = replace(found, **{name: _format(value)})  # type: ignore[arg-type]
        else:
            raise UsageError(
                f"--precision: {name[:20]!r} is no class of products",
                hint=nearest(name[:20], _CLASSES),
            )
    return found


UNPACKED: Final = (NumberFormat.INT4, NumberFormat.INT4_GROUP_32, NumberFormat.MXFP4)


def _format(text: str) -> OperatorPrecision:
    weights, slash, activations = text.lower().partition("/")
    names = [one.value for one in NumberFormat]
    for name in (weights, activations) if slash else (weights,):
        if name not in names:
            raise UsageError(
                f"--precision: {name[:20]!r} is no number format", hint=nearest(name[:20], names)
            )
    stored = NumberFormat(weights)
    cast = (
        NumberFormat(activations)
        if slash
        else (NumberFormat.BF16 if stored in UNPACKED else stored)
    )
    return OperatorPrecision(weights=stored, activations=cast)


def closed_loop(concurrency: int, *, requests: int) -> ClosedLoop:
    """So many requests in flight, 10 for each of them in all where nothing else is said.

    Raises:
        UsageError: out of range.
    """
    if not 1 <= concurrency <= 10**6 or not 0 <= requests <= MOST_REQUESTS:
        raise UsageError(
            f"{concurrency} requests in flight of {requests} is out of range",
            hint=f"1 to 1,000,000, of {MOST_REQUESTS:,} at most",
        )
    return ClosedLoop(
        concurrency=concurrency, requests=max(requests or 10 * concurrency, concurrency)
    )
